"""Which cached blocks are given up first, and that this changes hits but no token."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from roseplay.core.block_pool import BlockPool
from tests.core.harness import BLOCK_SIZE, Rig

SYSTEM = [1] * (8 * BLOCK_SIZE)


def filled(policy: str, uses: list[int], pinned_blocks: int = 0) -> BlockPool:
    """A pool whose blocks 1, 2, … are cached, were used so often, and were freed in this order."""
    pool = BlockPool(len(uses) + 1, BLOCK_SIZE)
    pool.set_eviction(policy, pinned_blocks)
    for _ in uses:
        pool.set_findable(pool.allocate(), True)
    for block, count in enumerate(uses, 1):
        for _ in range(count - 1):
            pool.acquire(block)
        for _ in range(count):
            pool.release(block)
    return pool


def num_pinned(pool: BlockPool) -> int:
    return sum(pool.is_pinned(block) for block in range(pool.num_blocks))


def taken(pool: BlockPool, count: int) -> list[int]:
    return [pool.allocate() for _ in range(count)]


def test_the_least_frequently_used_go_first_and_of_these_the_least_recent() -> None:
    assert taken(filled("lfu", [3, 1, 2, 1]), 4) == [2, 4, 3, 1]
    assert taken(filled("lru", [3, 1, 2, 1]), 4) == [1, 2, 3, 4]


def test_a_block_without_content_is_taken_again_first() -> None:
    """So that few blocks are ever used."""
    pool = BlockPool(9, BLOCK_SIZE)
    for block in taken(pool, 3):
        pool.release(block)
    assert taken(pool, 4) == [3, 2, 1, 4]


def test_the_policy_may_change_while_blocks_are_cached() -> None:
    pool = filled("lru", [3, 1, 2, 1])
    pool.set_eviction("lfu", 0)
    assert taken(pool, 2) == [2, 4]
    pool.set_eviction("lru", 0)
    assert taken(pool, 2) == [3, 1]


def test_a_block_that_is_used_again_and_again_takes_no_more_memory() -> None:
    pool = filled("lfu", [1, 1, 1])

    def use(times: int) -> None:
        for _ in range(times):
            pool.acquire(2)
            pool.release(2)

    use(1000)
    tracemalloc.start()
    use(5000)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 200_000
    assert taken(pool, 3) == [1, 3, 2]


def test_what_was_used_often_is_evicted_once_the_rest_has_turned_over_as_often() -> None:
    pool = filled("lfu", [5, 1])
    turnovers = 0
    while (block := pool.allocate()) != 1 and turnovers < 20:
        turnovers += 1
        pool.set_findable(block, True)
        pool.release(block)
    assert turnovers == 4, "the fifth use counts only until it is the oldest of that rank"


def test_pinned_blocks_go_last_and_are_at_most_half_of_the_pool() -> None:
    pool = filled("lru", [1] * 6, pinned_blocks=6)
    for block in (1, 2, 3, 4):
        pool.acquire(block)
        pool.pin_first([block])
        pool.release(block)
    assert [pool.is_pinned(block) for block in (1, 2, 3, 4)] == [True, True, True, False]
    assert taken(pool, 6) == [5, 6, 4, 1, 2, 3]
    assert num_pinned(pool) == 0


def test_blocks_that_are_unpinned_go_in_order_with_the_others() -> None:
    pool = filled("lru", [1] * 6, pinned_blocks=6)
    for block in (1, 2):
        pool.acquire(block)
        pool.pin_first([block])
        pool.release(block)
    pool.set_eviction("lru", 0)
    pool.acquire(5)
    pool.release(5)
    assert taken(pool, 6) == [3, 4, 6, 1, 2, 5]


@pytest.mark.parametrize("by", ["change", "clear"])
def test_pins_end(by: str) -> None:
    rig = Rig(pinned_blocks=8)
    for number in range(2):
        rig.add([*SYSTEM, 2, number], 2)
    rig.run()
    pool = rig.scheduler.pool
    assert num_pinned(pool) == 8
    if by == "clear":
        rig.clear_cache()
    else:
        rig.set_knobs(pinned_blocks=4)
    assert num_pinned(pool) == 0


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_preempted_request_that_finds_its_own_blocks_pins_none(mode: str) -> None:
    rig = Rig(num_blocks=24, pinned_blocks=2, preemption_mode=mode, num_host_blocks=100)
    for number in range(3):
        rig.add([number] * (6 * BLOCK_SIZE + number), 8)
    rig.run()
    (preempted,) = (request for request in rig.requests if request.num_preemptions)
    assert sum(len(step.admitted) for step in rig.steps) == 4
    assert num_pinned(rig.scheduler.pool) == 0
    rig.add(preempted.token_ids[: 6 * BLOCK_SIZE], 1)
    rig.run()
    assert num_pinned(rig.scheduler.pool) == 2, "another request pins them"


def test_a_request_may_take_pinned_blocks_when_there_are_no_others() -> None:
    rig = Rig(num_blocks=21, pinned_blocks=8)
    for number in range(2):
        rig.add([*SYSTEM, 2, number], 2)
    rig.run()
    rig.add([3] * (18 * BLOCK_SIZE), 5)
    rig.run()
    assert num_pinned(rig.scheduler.pool) < 8


def users(**knobs: Any) -> tuple[int, Rig]:
    """Ten users of one system prompt; after each of them but the first two, others' prompts fill the pool once."""
    rig = Rig(num_blocks=31, **knobs)
    for number in range(10):
        rig.add([*SYSTEM, 2, number, number], 3)
        rig.run()
        for other in range(4 if number else 0):
            rig.add([100 + 4 * number + other] * (9 * BLOCK_SIZE), 2)
            rig.run()
    return sum(request.num_cached_tokens for request in rig.requests), rig


def test_a_system_prompt_stays_where_it_is_used_often_or_pinned() -> None:
    lru, _ = users()
    lfu, _ = users(eviction_policy="lfu")
    pinned, rig = users(pinned_blocks=8)
    assert lru == len(SYSTEM), "only the second user finds it"
    assert lfu > 2 * lru
    assert pinned == 9 * len(SYSTEM)
    assert num_pinned(rig.scheduler.pool) == 8


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_what_follows_a_prefix_is_evicted_before_it(policy: str) -> None:
    rig = Rig(num_blocks=13, eviction_policy=policy)
    for number in range(2):
        rig.add([1] * (4 * BLOCK_SIZE) + [number] * (4 * BLOCK_SIZE), 1)
        rig.run()
    rig.add([3] * (2 * BLOCK_SIZE), 1)
    rig.run()
    again = rig.add([1] * (4 * BLOCK_SIZE) + [7], 1)
    rig.run()
    assert again.num_cached_tokens == 4 * BLOCK_SIZE
