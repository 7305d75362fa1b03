"""Requests for which a step reports an error: they end, the others continue, and none of their blocks can be found.

The last of these is checked after each error, also of random operations.
"""

from __future__ import annotations

import pytest

from roseplay.core.request import FinishReason
from tests.core.checker import NAN_LOGITS
from tests.core.harness import BLOCK_SIZE, Rig

HEAD = list(range(100, 100 + BLOCK_SIZE))


@pytest.mark.parametrize("length", [3, BLOCK_SIZE, 2 * BLOCK_SIZE, 2 * BLOCK_SIZE + 1])
def test_one_request_ends_with_all_that_its_tokens_lead_to_and_the_others_go_on(length: int):
    rig = Rig()
    prompt = list(range(100, 100 + length))
    others = rig.add([10] * 6), rig.add([30] * 6)
    bad = rig.add(prompt)
    step = rig.step(NAN_LOGITS, entry=2)
    assert (bad.finish_reason, bad.num_output_tokens) == (FinishReason.ERROR, 0)
    assert [request.num_output_tokens for request in others] == [1, 1]
    repeat = rig.add(prompt)
    following = rig.step()
    assert following.dropped_logits == [step.entries[2].save_logits_key]
    assert (following.prompt_tokens, following.cached_tokens, repeat.miss is None) == (length, 0, False)


def test_what_others_computed_behind_its_blocks_is_forgotten_and_other_prompts_are_not():
    rig = Rig()
    behind, other = [*HEAD, *HEAD, 1, 2, 3, 4, 5], [50] * 9
    rig.served(behind, [*HEAD, *HEAD, 6, 7, 8, 9], other, max_new_tokens=1)
    rig.add([*HEAD, *HEAD, 20, 21])
    assert rig.step(NAN_LOGITS, entry=0).cached_tokens == 2 * BLOCK_SIZE
    assert [request.num_cached_tokens for prompt in (behind, other) for request in rig.served(prompt)] == [0, 9]


def test_the_step_behind_may_compute_for_it_and_attach_what_it_left():
    rig = Rig(ahead=True)
    bad, good = rig.add(HEAD + HEAD, 9), rig.add([7] * 3, 9)
    rig.step(NAN_LOGITS, entry=0)
    rig.add(HEAD + HEAD, 9)
    rig.add([*HEAD, *HEAD, 1, 2], 9)
    behind = rig.step()
    assert [entry.request for entry in behind.entries] == rig.requests
    assert behind.cached_tokens == 4 * BLOCK_SIZE
    assert bad.finish_reason is FinishReason.ERROR and bad.block_table  # the step behind writes there
    rig.land()
    assert not bad.block_table
    assert list(rig.scheduler.requests.values()) == [good]


def test_what_cannot_be_reached_from_the_first_block_is_forgotten_too():
    """The first block was computed while the cache was off, so only the request itself leads to the later ones."""
    rig = Rig(prefix_cache=False, prefill_max_tokens=BLOCK_SIZE)
    rig.add(range(3 * BLOCK_SIZE))
    rig.step()
    rig.launch()
    rig.set_knobs(prefix_cache=True)
    rig.land()
    rig.launch(NAN_LOGITS)
    assert rig.scheduler.pool.is_findable(rig.requests[0].block_table[1])
    rig.land()
    assert rig.scheduler.pool.num_free == rig.scheduler.pool.num_usable


@pytest.mark.parametrize("swapped_first", [False, True])
def test_what_it_computed_does_not_come_back_from_host_memory(swapped_first: bool):
    """Another request shares its block, and is swapped after the error or before it."""
    rig = Rig(num_blocks=12, num_host_blocks=100, preemption_mode="swap")
    rig.add([1] * BLOCK_SIZE, 32)
    bad, good = rig.add([*HEAD, 1], 32), rig.add([*HEAD, 2], 32)
    rig.step()
    shared = good.block_table[0]
    assert bad.block_table[0] == shared
    while swapped_first and not rig.scheduler.host.tokens_of(good):
        rig.step()
    before = len(rig.steps)
    rig.step(NAN_LOGITS, entry=1)
    assert bad.finish_reason is FinishReason.ERROR
    assert rig.scheduler.host.tokens_of(good) == 0
    rig.run()
    if not swapped_first:  # it still held the block
        assert not any(shared == source for later in rig.steps[before:] for source, _ in later.swapped_out)
