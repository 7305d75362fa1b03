import random

import pytest

from roseplay.core.block_pool import BlockPool, OutOfBlocksError


def test_block_zero_is_never_handed_out():
    pool = BlockPool(5, 16)
    assert sorted(pool.allocate() for _ in range(4)) == [1, 2, 3, 4]
    with pytest.raises(OutOfBlocksError):
        pool.allocate()


def test_unused_blocks_are_handed_out_in_the_order_of_their_numbers():
    draw, pool, held, used = random.Random(2), BlockPool(60, 16), [], 0
    for _ in range(400):
        if held and draw.random() < 0.45:
            block = held.pop(draw.randrange(len(held)))
            pool.set_findable(block, draw.random() < 0.5)
            pool.release(block)
        elif pool.num_available:
            held.append(pool.allocate())
            assert held[-1] <= used + 1
            used = max(used, held[-1])
    assert used == pool.num_usable


def test_what_has_changed_is_told_once():
    pool = BlockPool(200, 16)
    assert pool.take_changed() == [], "all are free"
    block = pool.allocate()
    assert pool.take_changed() == [block]
    assert pool.take_changed() == []


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        BlockPool(1, 16)
    pool = BlockPool(2, 16)
    with pytest.raises(ValueError, match="no content"):
        pool.acquire(1)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(ValueError, match="more often"):
        pool.release(block)


def test_blocks_without_content_are_taken_before_cached_ones():
    pool = BlockPool(4, 16)
    blocks = [pool.allocate() for _ in range(3)]
    pool.set_findable(blocks[0], True)
    for block in blocks:
        pool.release(block)
    assert (pool.num_free, pool.num_cached) == (2, 1)
    assert blocks[0] not in (pool.allocate(), pool.allocate())
    assert pool.allocate() == blocks[0]
