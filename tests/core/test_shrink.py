"""Not enough memory for a step: it is undone, and the next steps are smaller."""

from __future__ import annotations

import itertools

import pytest

from roseplay.core.memory_limit import MemoryLimit
from tests.core.checker import NO_MEMORY
from tests.core.harness import BLOCK_SIZE, Rig


def test_the_limit_is_halved_until_a_step_fits_and_raised_once_there_is_memory_again():
    rig = Rig()
    rig.most_tokens = 10
    rig.served(range(40), max_new_tokens=1)
    assert [step.prompt_tokens for step in rig.steps[:3]] == [40, 20, 8]  # whole blocks
    for number in range(1, 120):
        rig.add(range(100 * number, 100 * number + 40), 1)
    rig.most_tokens = None
    limits = []
    while rig.scheduler.has_work:
        limits.append(rig.scheduler.token_limit)
        rig.step()
    assert [limit for limit, _ in itertools.groupby(limits)] == [10, 20, 40, None]


def test_small_steps_say_nothing_about_the_limit():
    limit = MemoryLimit(64)
    limit.failed(64)
    for _ in range(1000):
        limit.passed(16)
    assert limit.most == 32


def test_how_long_a_lower_limit_holds():
    """16 steps at first, twice as many after each raised limit that failed, and at most 1,024."""
    limit, waits = MemoryLimit(None), []
    limit.failed(100)
    for _ in range(9):
        steps = 0
        while limit.most == 50:
            limit.passed(50)
            steps += 1
        waits.append(steps)
        limit.failed(100)
    assert waits == [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]


@pytest.mark.parametrize(("start", "raised"), [(None, [16, 32, 64, None, None]), (48, [16, 32, 48, 48, 48])])
def test_a_limit_that_was_raised_is_forgotten_at_the_largest_size_that_failed(
    start: int | None, raised: list[int | None]
):
    limit, limits = MemoryLimit(start), []
    limit.failed(64)
    limit.failed(32)
    for _ in raised:
        limits.append(limit.most)
        for _ in range(16):
            limit.passed(limit.most or 1)
    assert limits == raised


def test_decodes_keep_their_blocks_and_raise_the_limit_too():
    rig = Rig()
    for number in range(8):
        rig.add([number] * BLOCK_SIZE, 60)
    rig.step()
    rig.most_tokens = 4
    rig.step()
    assert rig.scheduler.token_limit == 4
    rig.most_tokens = None
    assert rig.run() == 0
    assert rig.scheduler.token_limit is None
    assert not any(step.preempted for step in rig.steps)


def test_a_decode_whose_block_was_to_be_copied_starts_again():
    rig = Rig()
    for _ in range(2):
        rig.add([1] * 6, 9)
    rig.step()
    (copied,) = rig.step(NO_MEMORY).copied  # the first decode writes into a copy of the block that both hold
    assert list(rig.scheduler.waiting) == [rig.requests[copied]]
    assert rig.scheduler.running == [rig.requests[1 - copied]]
