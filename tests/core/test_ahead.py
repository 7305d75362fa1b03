"""Running one step ahead: the next step is scheduled and computed before the last one's tokens are known."""

import random
from collections import Counter
from typing import Any

import pytest

from roseplay.config import Knobs
from roseplay.core.request import PLACEHOLDER, FinishReason
from roseplay.core.step import Step, StepResult
from tests.core.driver import random_prompt
from tests.core.harness import BLOCK_SIZE, CheckedModel, Rig, check_blocks, expected_output


class Device(CheckedModel):
    """Executes steps in order. It knows the tokens it draws before the scheduler does."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.drawn: dict[int, int] = {}

    def execute(self, step: Step) -> StepResult:
        waiting = []
        for entry in step.entries:
            tokens = entry.request.token_ids
            if tokens[-1] == PLACEHOLDER:
                tokens[-1] = self.drawn[entry.request.request_id]
                waiting.append(entry.request)
        try:
            result = super().execute(step)
        finally:
            for request in waiting:
                request.token_ids[-1] = PLACEHOLDER
        for entry, token in zip(step.entries, result.token_ids, strict=True):
            if token is not None:
                self.drawn[entry.request.request_id] = token
        return result


class AheadRig(Rig):
    """A rig that launches the next step before it takes the last one's tokens, whenever that is allowed."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model = Device(self.scheduler.pool.num_blocks, self.scheduler.block_size)
        self.flying: tuple[Step, StepResult | None] | None = None
        self.ran_ahead = 0
        self.ended_in_flight = 0

    def step(self) -> Step | None:
        scheduler = self.scheduler
        if self.flying and not scheduler.can_run_ahead(self.flying[0]):
            self.settle()
            if not scheduler.has_work:
                return None
        before = self.flying
        if before is not None:
            scheduler.assume(before[0])
            self.ran_ahead += 1
        step = scheduler.schedule()
        self.steps.append(step)
        assert before is None or not step.preempted, "a request lost blocks that a step in flight writes into"
        broken = before is not None and before[1] is None  # then later steps cannot be trusted either
        try:
            result = None if broken else self.model.execute(step)
        except RuntimeError:
            result = None
        if before is not None:
            self._take(before, step)
        if self.flying is before:
            self.flying = (step, result)
        self.check()
        return step

    def settle(self) -> None:
        if self.flying is not None:
            flying, self.flying = self.flying, None
            self._take(flying)
            self.check()

    def _take(self, flying: tuple[Step, StepResult | None], *later: Step) -> None:
        step, result = flying
        if result is None:
            self.scheduler.fail(step, *later)
            self.flying = None
            return
        self.scheduler.update(step, result)
        self.ended_in_flight += len(self.scheduler.in_flight.leaving)

    def check(self) -> None:
        """Blocks are conserved, counting those of requests that ended while a step was writing for them."""
        pool, scheduler = self.scheduler.pool, self.scheduler
        assert pool.num_free + pool.num_cached + pool.num_active + pool.num_shared == pool.num_usable
        holders = [*scheduler.requests.values(), *scheduler.in_flight.leaving]
        held = Counter(block for request in holders for block in request.block_table)
        assert [held[block] for block in range(pool.num_blocks)] == pool.ref_counts
        for tokens in scheduler.cache._nodes:
            assert PLACEHOLDER not in tokens[1], "a token that is not known yet can be found"

    def run(self, max_steps: int = 20_000) -> int:
        before = self.model.computed_prompt_tokens
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                self.settle()
                return self.model.computed_prompt_tokens - before
            self.step()
        raise AssertionError(f"not finished after {max_steps} steps: {self.scheduler.requests}")


def outputs(rig: Rig) -> list[list[int]]:
    return [rig.output(request) for request in rig.submitted.values()]


def test_a_step_is_made_before_the_last_ones_tokens_are_known():
    rig = AheadRig()
    request = rig.add([1, 2, 3], 5)
    rig.step()
    rig.step()
    assert rig.steps[-1].entries[0].start == 3  # its second token is in flight
    assert request.token_ids[3:] == expected_output([1, 2, 3], 1)  # and only now is its first one known
    rig.run()
    assert rig.output(request) == expected_output([1, 2, 3], 5)
    assert len(rig.steps) == 5, "a request that ends by its length computes no extra token"


@pytest.mark.parametrize("length", [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1])
def test_what_is_drawn_after_a_stop_token_is_dropped(length: int):
    prompt = list(range(100, 100 + length))
    full = expected_output(prompt, 12)
    stop = full[5]
    rig = AheadRig()
    request = rig.add(prompt, 12, eos_token_ids=frozenset({stop}))
    rig.run()
    assert request.finish_reason is FinishReason.STOP
    assert rig.output(request) == full[: full.index(stop) + 1]
    assert rig.ended_in_flight == 1
    assert rig.scheduler.pool.num_available == rig.scheduler.pool.num_usable


def test_blocks_stay_until_nobody_writes_there():
    rig = AheadRig()
    request = rig.add([1] * BLOCK_SIZE, 9)
    rig.step()
    rig.step()
    held = list(request.block_table)
    rig.scheduler.end(request.request_id, FinishReason.ABORT)
    assert [rig.scheduler.pool.ref_counts[block] for block in held] == [1] * len(held)
    rig.settle()
    assert [rig.scheduler.pool.ref_counts[block] for block in held] == [0] * len(held)
    assert PLACEHOLDER not in request.token_ids


def test_history_becomes_findable_as_without_running_ahead():
    """All full blocks of prompt and answer, although their last token was unknown when they were scheduled."""
    saved = []
    for make in (Rig, AheadRig):
        rig = make()
        first = rig.add(range(100, 100 + BLOCK_SIZE), 3 * BLOCK_SIZE + 1)
        rig.run()
        again = rig.add([*first.token_ids, 7], 2)
        rig.run()
        saved.append(again.num_cached_tokens)
        rig.check_outputs()
    assert saved[0] == saved[1] == 4 * BLOCK_SIZE


def test_equal_prompts_share_with_a_step_that_still_runs():
    rig = AheadRig()
    rig.add(range(100, 137))
    rig.step()
    repeat = rig.add(range(100, 137))
    assert rig.run() == 0
    assert repeat.num_cached_tokens == 37
    rig.check_outputs()


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_a_step_that_fails_takes_the_one_after_it_along(failing: int):
    rig = AheadRig()
    requests = [rig.add([number] * 9, 12) for number in range(3)]
    rig.model.fail_on_step = failing
    rig.run()
    assert [request.finish_reason for request in requests] == [FinishReason.ERROR] * 3
    again = rig.add([0] * 9, 12)
    rig.run()
    assert rig.output(again) == expected_output([0] * 9, 12)
    rig.check_outputs()


@pytest.mark.parametrize("num_blocks", [7, 9, 12])
@pytest.mark.parametrize("knobs", [{}, {"prefix_cache": False}, {"prefill_max_tokens": 3}])
def test_preemption_waits_until_tokens_are_known(num_blocks: int, knobs: dict[str, Any]):
    rig = AheadRig(num_blocks=num_blocks, **knobs)
    for number in range(5):
        rig.add([number] * (BLOCK_SIZE - 1 + number % 3), 12)
    rig.run()
    assert sum(request.num_preemptions for request in rig.submitted.values()) > 0
    assert rig.ran_ahead > 0
    rig.check_outputs()


def test_on_and_off_give_the_same_tokens_to_everybody():
    for seed in range(6):
        said = []
        for make in (Rig, AheadRig):
            rng = random.Random(seed)
            rig = make(num_blocks=14, step_max_tokens=rng.choice([None, 5]), prefill_max_tokens=rng.choice([None, 4]))
            for _ in range(30):
                rig.add(random_prompt(rng), rng.choice([1, 3, 9]), eos_token_ids=frozenset({rng.randrange(1, 50)}))
            rig.run()
            said.append(outputs(rig))
        assert said[0] == said[1]


def test_a_step_without_memory_behind_one_that_ends_a_request():
    """The other requests in it return to their previous position, although a request before them has ended."""
    rig = AheadRig()
    stop = expected_output([1] * 3, 1)[0]
    rig.add([1] * 3, 9, eos_token_ids=frozenset({stop}))
    other = rig.add([2] * 3, 9)
    scheduler = rig.scheduler
    first = scheduler.schedule()
    result = rig.model.execute(first)
    scheduler.assume(first)
    second = scheduler.schedule()
    assert [entry.num_tokens for entry in second.entries] == [1, 1]
    scheduler.update(first, result)
    assert scheduler.shrink(second)
    rig.check()
    rig.run()
    assert rig.output(other) == expected_output([2] * 3, 9)


def test_a_step_that_fails_at_its_launch_behind_one_that_fails_later():
    """A request that waits for what both were to compute is requeued once, and then served."""
    rig = Rig(prefill_max_tokens=4)
    leader, follower = rig.add(range(8)), rig.add(range(8))
    scheduler = rig.scheduler
    first = scheduler.schedule()
    scheduler.assume(first)
    second = scheduler.schedule()
    assert [entry.num_tokens for entry in second.entries] == [4, 0]
    scheduler.fail(first)
    scheduler.fail(second)
    check_blocks(scheduler)
    assert leader.finish_reason is FinishReason.ERROR
    rig.run()
    assert rig.output(follower) == expected_output(range(8), 4)


def test_a_full_batch_of_last_tokens_leaves_nothing_to_make_ahead():
    rig = AheadRig(max_batch_size=2)
    for number in range(3):
        rig.add([number + 1], 1)
    step = rig.scheduler.schedule()
    assert len(step.entries) == 2
    assert not rig.scheduler.can_run_ahead(step)
    rig.scheduler.set_knobs(Knobs(max_batch_size=3))
    assert rig.scheduler.can_run_ahead(step)
