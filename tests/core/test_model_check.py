"""The scheduler, prefix cache, block pool and run-ahead against an oracle, operation by operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from roseplay.config import POLICIES
from roseplay.core.block_pool import BlockPool
from roseplay.core.cache_miss import MissReason
from roseplay.core.request import FinishReason
from tests.core import fuzz
from tests.core.checker import FAILURES, Checker
from tests.core.driver import run

prompts = st.builds(
    lambda head, length, tail: [head] * length + tail,
    st.integers(0, 2),
    st.integers(0, 11),
    st.lists(st.integers(10, 12), min_size=1, max_size=7),
)
budgets = st.sampled_from([None, 1, 3, 4, 9])
KNOBS = {
    "max_batch_size": st.sampled_from([1, 2, 5, 32]),
    "prefill_max_tokens": budgets,
    "prefill_max_batch_size": st.sampled_from([None, 1, 2]),
    "step_max_tokens": budgets,
    "chunked_prefill": st.booleans(),
    "prefix_cache": st.booleans(),
    "same_step_sharing": st.booleans(),
    "scheduling_policy": st.sampled_from(POLICIES),
    "max_overtakes": st.sampled_from([None, 1, 5]),
    "prefill_interval": st.sampled_from([0, 1, 4]),
    "eviction_policy": st.sampled_from(["lru", "lfu"]),
    "pinned_blocks": st.sampled_from([0, 1, 3]),
    "preemption_mode": st.sampled_from(["recompute", "swap"]),
    "speculative_tokens": st.sampled_from([0, 1, 3, 7]),
    "lookup_ngram": st.sampled_from([1, 3]),
}


class SchedulerMachine(RuleBasedStateMachine):
    """What the engine's loop may do with a scheduler, in any order; ``Checker`` checks it after each operation."""

    operations = 0
    checker: Checker

    @initialize(
        num_blocks=st.sampled_from([4, 9, 14, 40]),
        block_size=st.sampled_from([4, 1, 3]),
        max_saved_logits=st.sampled_from([100, 0, 1, 3]),
        num_state_slots=st.sampled_from([0, 1, 2, 7]),
        num_state_snapshots=st.sampled_from([0, 1, 2, 9]),
        state_interval=st.sampled_from([0, 1, 2]),
        num_host_blocks=st.sampled_from([0, 3, 100]),
    )
    def start(self, **settings: int) -> None:
        self.checker = Checker(**settings)

    @rule(
        prompt=prompts,
        count=st.integers(1, 9),
        seed=st.integers(0, 1),
        eos=st.frozensets(st.integers(1, 49)),
        prompt_logprobs=st.sampled_from([None, 0]),
        tenant=st.sampled_from([None, "a", "b"]),
        priority=st.integers(-1, 1),
    )
    def submit(self, prompt: list[int], count: int, **about: Any) -> None:
        self.checker.submit(prompt, count, **about)

    @rule(prompt=prompts, copies=st.integers(2, 4))
    def submit_equal_prompts(self, prompt: list[int], copies: int) -> None:
        for _ in range(copies):
            self.checker.submit(prompt, 3)

    @rule(prompt=prompts, repeats=st.integers(3, 40))
    def submit_a_long_prompt(self, prompt: list[int], repeats: int) -> None:
        self.checker.submit(prompt * repeats, 2)

    @precondition(lambda self: self.checker.device.truths)
    @rule(which=st.integers(0, 20), tail=st.lists(st.integers(10, 12), max_size=5), count=st.integers(1, 9))
    def submit_the_next_turn(self, which: int, tail: list[int], count: int) -> None:
        truths = list(self.checker.device.truths.values())
        self.checker.submit([*truths[which % len(truths)].tokens, *tail], count)

    @precondition(lambda self: self.checker.num_live)
    @rule(which=st.integers(0, 20), reason=st.sampled_from([FinishReason.ABORT, FinishReason.STOP]))
    def end(self, which: int, reason: FinishReason) -> None:
        self.checker.end(which, reason)

    @rule(changes=st.sampled_from(sorted(KNOBS)).flatmap(lambda name: st.fixed_dictionaries({name: KNOBS[name]})))
    def set_knobs(self, changes: dict[str, object]) -> None:
        self.checker.set_knobs(**changes)

    @rule()
    def clear_cache(self) -> None:
        self.checker.clear_cache()

    @rule(most_tokens=st.sampled_from([None, 1, 2, 5, 9]))
    def set_memory(self, most_tokens: int | None) -> None:
        self.checker.set_memory(most_tokens)

    @rule(step_limit=st.sampled_from([None, 2, 7]))
    def set_step_limit(self, step_limit: int | None) -> None:
        self.checker.set_step_limit(step_limit)

    @rule(times=st.integers(1, 12))
    def launch(self, times: int) -> None:
        for _ in range(times):
            self.checker.launch()

    @precondition(lambda self: self.checker.num_live)
    @rule(outcome=st.sampled_from(FAILURES))
    def launch_and_fail(self, outcome: str) -> None:
        self.checker.launch(outcome)

    @precondition(lambda self: self.checker.flying)
    @rule()
    def land(self) -> None:
        self.checker.land()

    @rule(times=st.integers(1, 5))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.checker.step()

    def teardown(self) -> None:
        if hasattr(self, "checker"):
            self.checker.drain()
            SchedulerMachine.operations += self.checker.operations


@pytest.mark.timeout(900)  # shrinking stops after five minutes
def test_any_sequence_of_operations_is_served_correctly(record_property: Callable[[str, object], None]) -> None:
    """If a sequence fails, Hypothesis shrinks it to a minimal one."""
    SchedulerMachine.operations = 0
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=200,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    record_property("operations", SchedulerMachine.operations)
    assert SchedulerMachine.operations >= 12_000


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


@pytest.mark.parametrize("seed", range(20))
def test_random_operations_are_served_correctly(seed: int, record_property: Callable[[str, object], None]) -> None:
    """Most operations, without shrinking; ``make fuzz`` runs many more."""
    record_property("operations", checked(seed, 4_000).operations)


def test_random_operations_meet_all_that_can_happen() -> None:
    """Every reason of a miss, every failure, each also with a step in flight, and all that a step can copy."""
    seeds = iter(range(12))
    while MET - set(+met):  # if the tests before this one have not run
        checked(next(seeds), 2500)
