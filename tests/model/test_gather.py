"""Attention on gathered blocks against the reference, in the cases that the kernels are tested with."""

from __future__ import annotations

import pytest
import torch

from roseplay.model.attention.gather import GatherBackend
from tests.model.attention_cases import (
    TOLERANCE,
    Case,
    latent_cases,
    make_problem,
    pairwise_cases,
    relative_error,
    right_answer,
)


@pytest.mark.parametrize("masked_queries", [5, 256])
@pytest.mark.parametrize("case", [case for case in pairwise_cases() + latent_cases() if not case.padded], ids=str)
def test_it_agrees_with_the_reference(case: Case, masked_queries: int):
    problem, same = (make_problem(case, torch.device("cpu")) for _ in range(2))
    found = problem.attend(GatherBackend(problem.cache, masked_queries=masked_queries))
    assert relative_error(found, right_answer(same)) <= TOLERANCE[case.dtype]
