"""The prefix cache alone: which tokens find which block, and what its events add up to."""

from __future__ import annotations

from roseplay.core.block_pool import BlockPool
from roseplay.core.cache_events import CacheLog, Stored
from roseplay.core.prefix_cache import PrefixCache
from tests.core.invariants import apply_cache_event

HEAD, REST = (1, 2), (3, 4)


def list_both(cache: PrefixCache, blocks: tuple[int, int]) -> None:
    """List both blocks, one behind the other, as a step of a request that holds them does."""
    head = cache.insert_block(None, HEAD, blocks[0], 0, 0)
    cache.insert_block(head, REST, blocks[1], 0, 0)
    cache.commit(keep=True)
    cache.confirm()


def test_a_block_that_is_listed_again_behind_another_parent_leaves_nothing_of_before() -> None:
    pool, log = BlockPool(num_blocks=9, block_size=2), CacheLog()
    cache = PrefixCache(pool, max_saved_logits=0, log=log)
    blocks = pool.allocate(), pool.allocate()
    list_both(cache, blocks)
    cache.unlist(blocks[0])
    list_both(cache, blocks)  # the second was still listed, behind the parent that was dropped
    for block in blocks:
        cache.unlist(block)
    stored: dict[int, Stored] = {}
    for event in log.take():
        apply_cache_event(stored, event)
    assert stored == {}, "blocks were never reported removed"
