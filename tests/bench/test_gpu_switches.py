"""Answers of two settings are compared up to a place where rounding decides, and no further."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from roseplay.bench.gpu_checks import TIE, agree_but_for_rounding, check_switches
from roseplay.config import SamplingParams
from roseplay.kernels.cuda.emulation import emulate_gpu


def logits_of(tokens: list[int]) -> Any:
    """5 and 9 are as good as equal after two tokens; else the best one is the number of tokens."""
    row = torch.zeros(1, 20)
    row[0, len(tokens)] = 6.0
    if len(tokens) == 2:
        row[0, 5], row[0, 9] = 8.0, 8.0 + TIE / 2
    return row


GREEDY = SamplingParams()
WARM = SamplingParams(temperature=0.01, top_p=0.9, seed=3)


@pytest.mark.parametrize(
    ("right", "found", "agree"),
    [
        ([9, 3, 4], [9, 3, 4], True),
        ([9, 3, 4], [5, 1, 1], True),  # from the tie on they may say anything
        ([5, 3, 4], [9, 3, 4], True),
        ([9, 3, 4], [7, 3, 4], False),
        ([9, 3, 4], [9, 2, 4], False),
        ([9, 3, 4], [9, 3, 5], False),
    ],
)
def test_greedy_answers(right: list[int], found: list[int], agree: bool):
    assert agree_but_for_rounding(logits_of, [1, 1], GREEDY, right, found) is agree


def test_drawn_answers():
    far = [3, 7]
    assert agree_but_for_rounding(logits_of, [1, 1, 1], WARM, far, far)
    assert not agree_but_for_rounding(logits_of, [1, 1, 1], WARM, far, [12, 7])


def test_the_switches_pass_on_a_cpu():
    with emulate_gpu():
        found = check_switches("cpu", "reference")
    assert found["passed"], found
    assert found["answers"] == 12
