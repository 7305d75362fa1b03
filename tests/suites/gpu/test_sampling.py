"""Tokens drawn by the Triton kernels against those of the plain sampler, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from roseplay.core.request import Request
from roseplay.kernels.cuda.accelerator import CudaAccelerator
from roseplay.model.sampler import draw
from tests.kernels.launches import Launches
from tests.model.test_sampler import MIXED, random_logits, request
from tests.suites.gpu.conftest import ON_GPU

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter's numpy divides infinities
]

ROWS = 300 if ON_GPU else 16  # each takes the interpreter a few milliseconds
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def drawn(logits: torch.Tensor, requests: list[Request]) -> list[int]:
    """By the kernels; fails if they do not support the logits."""
    with torch.inference_mode():
        tokens = CudaAccelerator.sample(logits.to(DEVICE), requests)
    assert tokens is not None
    return tokens.tolist()


def random_request(rng: random.Random, vocabulary: int) -> Request:
    params: dict[str, Any] = {
        "temperature": rng.choice((0.0, 1e-4, 0.3, 0.6, 1.0, 1.7, 20.0)),
        "seed": rng.randrange(2**63),
    }
    if rng.random() < 0.5:
        params["top_k"] = rng.choice((1, 2, 20, max(1, vocabulary // 2), vocabulary, 10**9))
    if rng.random() < 0.5:
        params["top_p"] = rng.choice((1e-9, 0.1, 0.5, 0.9, 0.95, 0.999))
    if rng.random() < 0.3:
        params["min_p"] = rng.choice((0.001, 0.1, 0.9, 1.0))
    return request(answer=(4,) * rng.randrange(9), **params)


def hold_to_the_plain_sampler(vocabulary: int, dtype: torch.dtype, rows: int, scales: tuple[float, ...]) -> None:
    rng = random.Random(vocabulary)
    for scale in scales:
        asked = [random_request(rng, vocabulary) for _ in range(rows)]
        logits = random_logits(rows, vocabulary, seed=rng.randrange(99), scale=scale).to(dtype)
        assert drawn(logits, asked) == draw(logits, asked).tolist()


@pytest.mark.parametrize(
    ("vocabulary", "dtype"), [(1, torch.float32), (97, torch.float32), (1000, torch.float16), (2100, torch.bfloat16)]
)
def test_tokens_are_those_of_the_plain_sampler(vocabulary: int, dtype: torch.dtype):
    hold_to_the_plain_sampler(vocabulary, dtype, 6, (0.01, 3.0))


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", [1, 2, 31, 128, 1000, 2048, 5003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_tokens_are_those_of_the_plain_sampler(vocabulary: int, dtype: torch.dtype):
    hold_to_the_plain_sampler(vocabulary, dtype, 24, (0.0, 0.01, 3.0, 60.0))


@pytest.mark.parametrize("levels", [1, 40])
def test_equals_at_the_cut_are_all_kept(levels: int):
    """Logits of a few different values, zeros of both signs among them, and most of a row without probability."""
    rng = random.Random(levels)
    asked = [random_request(rng, 300) for _ in range(12)]
    logits = (random_logits(len(asked), 300, seed=levels) * levels / 9).round()
    logits[::3, 5:290] = -torch.inf
    assert drawn(logits, asked) == draw(logits, asked).tolist()


def test_many_draws_of_one_row_are_those_of_the_plain_sampler():
    """So that a threshold that is off by one token shows."""
    row = random_logits(1, 50, seed=3, scale=1.0)
    for cuts in ({"top_k": 7}, {"top_p": 0.8}, {"top_k": 30, "top_p": 0.5, "min_p": 0.02}, {"min_p": 0.3}):
        asked = [request(seed=seed, temperature=0.9, **cuts) for seed in range(ROWS)]
        assert drawn(row.expand(ROWS, -1), asked) == draw(row.expand(ROWS, -1), asked).tolist()


@pytest.mark.parametrize("params", [p for p in MIXED if p["temperature"] > 0])
def test_a_row_without_a_distribution_has_no_token_and_harms_no_other(params: dict[str, Any]):
    logits = random_logits(7)
    asked = [request(**{name: value for name, value in params.items() if "penalty" not in name}) for _ in range(7)]
    expected = draw(logits, asked)
    logits[1, 5] = torch.nan
    logits[2] = torch.nan
    logits[3, 7] = torch.inf
    logits[4] = -torch.inf
    logits[5, 9] = -torch.tensor(torch.nan)
    logits[6, 1:] = -torch.inf
    assert drawn(logits, asked) == [int(expected[0]), -1, -1, -1, -1, -1, 0]


def test_rows_are_drawn_in_parts_and_where_they_lie():
    """One row by several programs, rows of a wider tensor, and a greedy row whose largest logit is there twice."""
    wide = random_logits(3, 20_000, seed=5).to(torch.bfloat16)
    asked = [request(temperature=1.0, seed=1), request(temperature=0.8, seed=2, top_k=20, top_p=0.95), request()]
    wide[2, [9_000, 15_000]] = 99.0
    for logits in (wide[:, :19_990], wide[:, 5:]):
        for rows in (slice(0, 1), slice(1, 2), slice(0, 3)):
            assert drawn(logits[rows], asked[rows]) == draw(logits[rows], asked[rows]).tolist()


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that an operation returns."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        found = [x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.numbers = max(self.numbers, *found, 0)
        return out


def test_no_copy_of_the_logits_is_made():
    """The memory that sampling may take is kept free."""
    asked = [request(**params) for params in MIXED if not any("penalty" in name for name in params)]
    logits = random_logits(len(asked)).to(DEVICE)
    with Launches(), Largest() as largest:
        draw(logits, asked, wait=False, kernels=CudaAccelerator)
    assert largest.numbers < 100
    with Largest() as largest:
        draw(logits, asked, wait=False)
    assert largest.numbers >= logits.numel() // 2  # of those without greedy rows
