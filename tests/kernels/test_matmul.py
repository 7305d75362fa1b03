"""Products with explicit vectors: equal to plain ones up to rounding, for any size, number of rows and threads."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional

from tests.model.harness import torch_threads

matmul = pytest.importorskip("roseplay.kernels.cpu.matmul", reason="Numba is not installed")

STRIP, most_rows = matmul.STRIP, matmul.most_rows
DTYPES = [
    pytest.param(dtype, marks=pytest.mark.skipif(not most_rows(dtype), reason="this CPU has no such vectors"))
    for dtype in (torch.float32, torch.bfloat16)
]


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    strips = matmul.lay_out(weight)
    wide = torch.zeros(len(strips) * STRIP)
    if bias is not None:
        wide[: len(bias)] = bias
    return matmul.multiply(x, strips, wide, len(weight))


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    rounding = 8e-3 if expected.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found, expected, rtol=rounding, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [50, 96])
def test_any_number_of_rows(inner: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(70, inner, dtype=dtype), torch.randn(70)
    for rows in (*range(1, 14), 16, 17, 24, 25, 32, 33, 97, 200, 300):
        x = torch.randn(rows, inner, dtype=dtype)
        expected = functional.linear(x.double(), weight.double(), bias.double()).to(dtype)
        assert_near(product(x, weight, bias), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_size_of_a_weight(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for outer, inner in itertools.product((1, 31, 32, 33, 64, 65), (2, 6, 64, 130)):
        x, weight = torch.randn(2, 3, inner, dtype=dtype), torch.randn(inner, outer, dtype=dtype).T
        found = product(x, weight)
        assert found.shape == (2, 3, outer)
        assert_near(found, functional.linear(x.double(), weight.double()).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_in_any_company_and_with_any_number_of_threads(dtype: torch.dtype) -> None:
    x, weight = torch.randn(64, 512, dtype=dtype), torch.randn(200, 512, dtype=dtype)
    none = torch.empty(1, 0, 512, dtype=dtype)  # as in a step from which no token is sampled
    with torch_threads(2):
        together = product(x, weight)
        assert product(none, weight).shape == (1, 0, 200)
    for count in (1, 2, 5, 12, 33):
        assert torch.equal(product(x[3 : 3 + count], weight), together[3 : 3 + count])
    assert product(none, weight).shape == (1, 0, 200)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [2048, 3072])
def test_rows_that_lie_far_apart(inner: int, dtype: torch.dtype) -> None:
    """Their distance is a multiple of 2 KiB or more: they are moved, and fewer rows are processed at a time."""
    torch.manual_seed(inner)
    x, weight = torch.randn(100, inner, dtype=dtype), torch.randn(40, inner, dtype=dtype)
    expected = functional.linear(x.double(), weight.double()).to(dtype)
    rounding = 8e-3 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(product(x, weight), expected, rtol=rounding, atol=2e-3)
    assert torch.equal(product(x[7:8], weight), product(x, weight)[7:8])


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_a_larger_tensor_and_what_is_not_finite(dtype: torch.dtype) -> None:
    x, weight = torch.randn(4, 128, dtype=dtype)[:, 32:96], torch.randn(40, 64).to(dtype)
    weight[weight == 0] = 1.0  # of which the product with infinity is not a number
    x[1, 5], x[2, 7] = torch.nan, torch.inf
    found = product(x, weight)
    assert found[1].isnan().all() and found[2].isinf().all()
    expected = functional.linear(x.float(), weight.float())[[0, 3]]
    torch.testing.assert_close(found[[0, 3]].float(), expected, rtol=8e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_does_not_go_together_is_refused(dtype: torch.dtype) -> None:
    weight = torch.randn(8, 16, dtype=dtype)
    with pytest.raises(RuntimeError, match="the weight"):
        product(torch.randn(2, 14, dtype=dtype), weight)
    with pytest.raises(RuntimeError, match="the weight"):
        product(torch.randn(2, 16, dtype=torch.float64), weight)


def test_what_cannot_be_laid_out() -> None:
    assert not matmul.fits(torch.randn(4, 5, dtype=torch.bfloat16))  # numbers are stored in pairs
    assert not matmul.fits(torch.randn(4, 4, dtype=torch.float16))
