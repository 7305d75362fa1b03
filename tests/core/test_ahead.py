"""Running one step ahead: the next step is scheduled and computed before the last one's tokens are known.

That everybody gets the right tokens, whatever fails or is preempted, is checked by random operations.
"""

from __future__ import annotations

import pytest

from roseplay.core.request import PLACEHOLDER, FinishReason
from tests.core.checker import BROKEN_AT_LAUNCH, BROKEN_LATER
from tests.core.harness import BLOCK_SIZE, Rig


def test_a_step_is_made_before_the_last_ones_tokens_are_known():
    rig = Rig(ahead=True)
    request = rig.add([1, 2, 3], 5)
    rig.step()
    assert rig.step().entries[0].start == 3  # its second token is in flight
    assert request.num_known_tokens == 4  # and only now is its first one known
    rig.run()
    assert len(rig.steps) == 5, "a request that ends by its length computes no extra token"


def test_blocks_stay_until_nobody_writes_there():
    rig = Rig(ahead=True)
    request = rig.add([1] * BLOCK_SIZE, 9)
    rig.step()
    rig.step()
    held = list(request.block_table)
    rig.end_request(request)
    assert [rig.scheduler.pool.ref_counts[block] for block in held] == [1] * len(held)
    rig.land()
    assert [rig.scheduler.pool.ref_counts[block] for block in held] == [0] * len(held)
    assert PLACEHOLDER not in request.token_ids


@pytest.mark.parametrize("ahead", [False, True])
def test_history_becomes_findable_as_without_running_ahead(ahead: bool):
    """All full blocks of prompt and answer, although their last token was unknown when they were scheduled."""
    rig = Rig(ahead=ahead)
    (first,) = rig.served(range(100, 100 + BLOCK_SIZE), max_new_tokens=3 * BLOCK_SIZE + 1)
    (again,) = rig.served([*first.token_ids, 7])
    assert again.num_cached_tokens == 4 * BLOCK_SIZE


def test_equal_prompts_share_with_a_step_that_still_runs():
    rig = Rig(ahead=True)
    rig.add(range(100, 137))
    rig.step()
    repeat = rig.add(range(100, 137))
    assert rig.run() == 0
    assert repeat.num_cached_tokens == 37


def test_a_full_batch_of_last_tokens_leaves_nothing_to_make_ahead():
    rig = Rig(ahead=True, max_batch_size=2)
    for number in range(3):
        rig.add([number + 1], 1)
    step = rig.step()
    assert len(step.entries) == 2
    assert not rig.scheduler.can_run_ahead(step)
    rig.set_knobs(max_batch_size=3)
    assert rig.scheduler.can_run_ahead(step)


def test_a_step_that_fails_at_its_launch_behind_one_that_fails_later():
    """A request that waits for what both were to compute is requeued once, and then served."""
    rig = Rig(ahead=True, prefill_max_tokens=4)
    leader, follower = rig.add(range(8)), rig.add(range(8))
    rig.step(BROKEN_LATER)
    step = rig.step(BROKEN_AT_LAUNCH)
    assert [entry.num_tokens for entry in step.entries] == [4, 0]
    assert leader.finish_reason is FinishReason.ERROR
    assert list(rig.scheduler.waiting) == [follower]
