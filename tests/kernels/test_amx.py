"""AMX's tiles: their sizes, and that a strip holds the operands of the instruction, which is emulated in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

matmul = pytest.importorskip("roseplay.kernels.cpu.matmul", reason="Numba is not installed")
from roseplay.kernels.cpu import amx  # noqa: E402


def sizes(rows: int) -> tuple[list[int], list[int]]:
    """The bytes per row and the rows of each register, as configured for a product of ``rows`` rows."""
    config = np.zeros(amx.CONFIG_BYTES, np.uint8)
    amx.configure.py_func(config, rows)
    assert config[0] == 1
    return config[16:32:2].tolist(), config[48:56].tolist()


@pytest.mark.parametrize("rows", range(1, amx.MOST_ROWS + 1))
def test_registers_have_as_many_rows_as_the_product(rows: int) -> None:
    row_bytes, counts = sizes(rows)
    low, high = min(rows, 16), max(0, rows - 16)
    assert counts == [low, low, high, high, low, high, 16, 16]
    assert row_bytes == [64 if count else 0 for count in counts], "an unused register has no bytes per row either"


def dot(sums: np.ndarray, x: np.ndarray, strip: np.ndarray) -> None:
    """``tdpbf16ps``: add ``[rows, 32]`` times 16 pairs for each of 16 outputs ``[16, 32]`` to sums ``[rows, 16]``."""
    pairs = strip.reshape(16, 16, 2)
    sums += np.einsum("rkp,kop->ro", x.reshape(len(x), 16, 2), pairs)


def bytes_at(memory: torch.Tensor, begin: int, stride: int, rows: int) -> np.ndarray:
    """``tileloadd``: 32 bfloat16 of each row, starting at byte ``begin``, with rows ``stride`` bytes apart."""
    numbers = memory.contiguous().view(-1)
    taken = [numbers[(begin + stride * row) // 2 :][:32] for row in range(rows)]
    return torch.stack(taken).double().numpy()


@pytest.mark.parametrize("rows", [1, 16, 17, 32])
def test_a_strip_holds_the_tiles_side_by_side(rows: int) -> None:
    torch.manual_seed(rows)
    inner, outer = 96, 64
    x, weight = torch.randn(rows, inner, dtype=torch.bfloat16), torch.randn(outer, inner, dtype=torch.bfloat16)
    strips, found = matmul.lay_out(weight), np.zeros((rows, outer))
    strip_bytes = strips[0].numel() * 2
    for strip in range(len(strips)):
        for step in range(inner // amx.STEP):
            for half in range(2):
                at = strip * strip_bytes + step * 2048 + half * 64
                tile = bytes_at(strips, at, 128, 16)
                for first in range(0, rows, amx.ROWS):
                    count = min(amx.ROWS, rows - first)
                    of_x = bytes_at(x, (first * inner + step * amx.STEP) * 2, 2 * inner, count)
                    column = strip * 32 + half * 16
                    dot(found[first : first + count, column : column + 16], of_x, tile)
    np.testing.assert_allclose(found, (x.double() @ weight.double().T).numpy(), rtol=1e-9)
