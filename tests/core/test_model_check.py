"""The scheduler, prefix cache, block pool and run-ahead against an oracle, operation by operation."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roseplay.core.block_pool import BlockPool
from roseplay.core.cache_miss import MissReason
from tests.core import fuzz
from tests.core.checker import FAILURES, Checker
from tests.core.driver import operate, run


@pytest.mark.timeout(900)  # shrinking stops after five minutes
@settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_any_sequence_of_operations_is_served_correctly(rng: random.Random, operations: int) -> None:
    """If a sequence fails, Hypothesis shrinks it to a minimal one."""
    operate(rng, operations)


def test_a_run_that_fails_says_how_to_do_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(BlockPool, "acquire", lambda self, block: None)
    assert fuzz.main(["--operations", "500", "--run-length", "500", "--seed", "2", "--jobs", "1"]) == 1
    errors = capsys.readouterr().err
    assert "make fuzz ARGS='--replay 20000000 --run-length 500'" in errors
    assert fuzz.main(["--replay", "20000000", "--run-length", "500"]) == 1
    assert capsys.readouterr().err.split("the last of them")[1] == errors.split("the last of them")[1]


def test_a_fuzz_run_counts_what_it_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--operations", "900", "--run-length", "300", "--jobs", "1"]) == 0
    counted = int(capsys.readouterr().out.split()[0].replace(",", ""))
    assert 900 <= counted < 2_000


MET = {"ran ahead", "accepted", "preempted", "copies", "swapped_in", "states_before", "dropped_logits"}
MET |= {f"{outcome}{ahead}" for outcome in FAILURES for ahead in ("", ", ahead")} | set(MissReason)
met = Counter[str]()


def checked(seed: int, operations: int) -> Checker:
    checker = run(seed, operations)
    met.update(checker.met + Counter(checker.explanations.told))
    return checker


@pytest.mark.parametrize("seed", range(12))
def test_random_operations_are_served_correctly(seed: int, record_property: Callable[[str, object], None]) -> None:
    """Most operations, without shrinking; ``make fuzz`` runs many more."""
    record_property("operations", checked(seed, 4_000).operations)


def test_random_operations_meet_all_that_can_happen() -> None:
    """Every reason of a miss, every failure, each also with a step in flight, and all that a step can copy."""
    seeds = iter(range(12))
    while MET - set(+met):  # if the tests before this one have not run
        checked(next(seeds), 2500)
