"""Requests for which a step reports an error: they end, the others continue, and none of their blocks can be found."""

from __future__ import annotations

import pytest

from roseplay.core.cache_entries import Lookup
from roseplay.core.request import FinishReason
from roseplay.core.step import Step, StepResult
from tests.core.harness import BLOCK_SIZE, Rig, check_blocks

WHY = "the model gave NaN logits"


def computed(rig: Rig, step: Step, *failed: int) -> StepResult:
    """The step's result, with errors for the entries ``failed``."""
    result = rig.model.execute(step)
    for index in failed:
        result.token_ids[index] = None
        result.errors[index] = WHY
    return result


def land(rig: Rig, step: Step, result: StepResult) -> list[int]:
    """Apply the result; returns the ids of the requests that got a token."""
    said = [entry.request.request_id for entry, _ in rig.scheduler.update(step, result)]
    check_blocks(rig.scheduler)
    return said


def findable(rig: Rig) -> list[int]:
    return [block for block in range(rig.scheduler.pool.num_blocks) if rig.scheduler.pool.is_findable(block)]


def test_one_request_ends_and_the_others_go_on():
    rig = Rig()
    good, bad, other = (rig.add([10 * i] * 6) for i in range(1, 4))
    step = rig.scheduler.schedule()
    assert land(rig, step, computed(rig, step, 1)) == [0, 2]
    assert rig.scheduler.take_errors() == [(bad, WHY)]
    assert rig.scheduler.take_errors() == []
    assert bad.finish_reason is FinishReason.ERROR
    assert rig.output(bad) == []
    rig.run()
    rig.check_outputs()
    assert {good.finish_reason, other.finish_reason} == {"length"}


@pytest.mark.parametrize("length", [3, BLOCK_SIZE, 2 * BLOCK_SIZE, 2 * BLOCK_SIZE + 1])
def test_all_that_its_tokens_lead_to_is_forgotten(length: int):
    rig = Rig()
    prompt = list(range(100, 100 + length))
    rig.add(prompt)
    step = rig.scheduler.schedule()
    key = step.entries[0].save_logits_key
    assert key is not None
    land(rig, step, computed(rig, step, 0))
    assert findable(rig) == []
    rig.add(prompt)
    following = rig.scheduler.schedule()
    assert following.dropped_logits == [key]
    assert (following.prompt_tokens, following.cached_tokens) == (length, 0)


def test_what_others_computed_behind_its_blocks_is_forgotten_and_other_prompts_are_not():
    rig = Rig()
    head = list(range(100, 100 + 2 * BLOCK_SIZE))
    for tokens in ([*head, 1, 2, 3, 4, 5], [*head, 6, 7, 8, 9], [50] * 9):
        rig.add(tokens, 1)
    rig.run()
    rig.add([*head, 20, 21], 4)
    step = rig.scheduler.schedule()
    assert step.cached_tokens == len(head)
    land(rig, step, computed(rig, step, 0))
    for tokens, cached in (([*head, 1, 2, 3, 4, 5], 0), ([50] * 9, 9)):
        rig.add(tokens, 1)
        assert rig.step().cached_tokens == cached


def test_who_shares_its_blocks_keeps_them_to_itself():
    """It continues with them, but does not make them findable again."""
    rig = Rig()
    head = list(range(100, 100 + BLOCK_SIZE))
    bad, good = rig.add([*head, 1]), rig.add([*head, 2], 3 * BLOCK_SIZE)
    step = rig.scheduler.schedule()
    assert step.shared_tokens == BLOCK_SIZE
    shared = good.block_table[0]
    assert bad.block_table[0] == shared
    land(rig, step, computed(rig, step, 0))
    for _ in range(2 * BLOCK_SIZE):
        rig.step()
        assert shared not in findable(rig)
    rig.run()
    rig.check_outputs()
    rig.add([*head, 2], 3 * BLOCK_SIZE)
    assert rig.step().cached_tokens == 0  # other requests have the block by now, and it is found by their tokens
    rig.run()
    rig.check_outputs()
    assert rig.add([*head, 2]) and rig.step().cached_tokens == BLOCK_SIZE + 1


def test_a_request_that_was_aborted_meanwhile_leaves_nothing_either():
    rig = Rig()
    bad = rig.add([1] * 9)
    step = rig.scheduler.schedule()
    rig.scheduler.end(bad.request_id, FinishReason.ABORT)
    assert land(rig, step, computed(rig, step, 0)) == []
    assert bad.finish_reason is FinishReason.ABORT
    assert rig.scheduler.take_errors() == []
    assert findable(rig) == []


@pytest.mark.parametrize("fails_again", [True, False])
def test_the_step_behind_may_compute_for_it_and_attach_what_it_left(fails_again: bool):
    rig = Rig()
    prompt = list(range(100, 100 + 2 * BLOCK_SIZE))
    bad, good = rig.add(prompt, 9), rig.add([7] * 3, 9)
    first = rig.scheduler.schedule()
    failed = computed(rig, first, 0)
    rig.scheduler.assume(first)
    repeat, longer = rig.add(list(prompt), 9), rig.add([*prompt, 1, 2], 9)
    behind = rig.scheduler.schedule()
    ids = [entry.request.request_id for entry in behind.entries]
    assert ids == [bad.request_id, good.request_id, repeat.request_id, longer.request_id]
    assert behind.cached_tokens == 2 * len(prompt)
    assert [entry.request for entry, _ in rig.scheduler.update(first, failed)] == [good]
    assert bad.finish_reason is FinishReason.ERROR
    assert bad.block_table  # the step behind writes there
    errors = {0: WHY, 2: WHY} if fails_again else {2: WHY}
    result = StepResult([None if i in errors else 1 for i in range(4)], [None] * 4, errors=errors)
    assert land(rig, behind, result) == [good.request_id, longer.request_id]
    assert (bad.block_table, repeat.finish_reason) == ([], FinishReason.ERROR)
    assert [request for request, _ in rig.scheduler.take_errors()] == [bad, repeat]
    rig.scheduler.end(longer.request_id, FinishReason.ABORT)
    rig.scheduler.end(good.request_id, FinishReason.ABORT)
    assert rig.scheduler.pool.num_available == rig.scheduler.pool.num_usable
    assert rig.scheduler.cache.find_block(None, tuple(prompt[:BLOCK_SIZE]), Lookup(0, True, True)) is None


def test_what_cannot_be_reached_from_the_first_block_is_forgotten_too():
    """The first block was computed while the cache was off, so only the request itself leads to the later ones."""
    rig = Rig(prefix_cache=False, prefill_max_tokens=BLOCK_SIZE)
    rig.add(range(3 * BLOCK_SIZE))
    rig.step()
    step = rig.scheduler.schedule()
    rig.scheduler.set_knobs(rig.scheduler.knobs.changed({"prefix_cache": True}))
    land(rig, step, computed(rig, step))
    step = rig.scheduler.schedule()
    assert findable(rig) != []
    land(rig, step, computed(rig, step, 0))
    assert findable(rig) == []


@pytest.mark.parametrize("swapped_first", [False, True])
def test_what_it_computed_does_not_come_back_from_host_memory(swapped_first: bool):
    """Another request shares its block, and is swapped after the error or before it."""
    rig = Rig(num_blocks=12, num_host_blocks=100, preemption_mode="swap")
    head = list(range(100, 100 + BLOCK_SIZE))
    first, bad, good = rig.add([1] * BLOCK_SIZE, 32), rig.add([*head, 1], 32), rig.add([*head, 2], 32)
    rig.step()
    shared = good.block_table[0]
    assert bad.block_table[0] == shared
    if swapped_first:
        while not rig.scheduler.host.tokens_of(good):
            rig.step()
    step = rig.scheduler.schedule()
    (index,) = [index for index, entry in enumerate(step.entries) if entry.request is bad]
    land(rig, step, computed(rig, step, index))
    assert rig.scheduler.host.tokens_of(good) == 0
    before = len(rig.steps)
    rig.run()
    assert first.finish_reason == good.finish_reason == "length"
    if not swapped_first:  # it still held the block
        assert not any(shared == source for later in rig.steps[before:] for source, _ in later.swapped_out)
    rig.check_outputs()
