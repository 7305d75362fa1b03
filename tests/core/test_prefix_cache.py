"""The prefix cache and its events: whatever is removed, what is left is found from the beginning of a prompt."""

from __future__ import annotations

import pytest

from roseplay.core.block_pool import BlockPool
from roseplay.core.cache_entries import Lookup, Node
from roseplay.core.cache_events import CacheLog
from roseplay.core.cache_miss import MissReason
from roseplay.core.prefix_cache import PrefixCache
from tests.core.harness import BLOCK_SIZE, Rig
from tests.core.invariants import CacheTree

HEAD, REST, OTHER, LAST = (1, 2), (3, 4), (5, 6), (7, 8)


def replayed(log: CacheLog, tree: CacheTree | None = None) -> CacheTree:
    tree = tree or CacheTree()
    for event in log.take():
        tree.apply(event)
    return tree


class Tree:
    """A cache of blocks 1 to 4: the second and third follow the first, the fourth follows the second."""

    def __init__(self) -> None:
        self.pool, self.log = BlockPool(num_blocks=9, block_size=2), CacheLog()
        self.cache = PrefixCache(self.pool, max_saved_logits=9, log=self.log)
        self.blocks = [self.pool.allocate() for _ in range(4)]
        self.list_all()

    def list_all(self) -> None:
        head = self.insert(None, HEAD, 0)
        rest = self.insert(head, REST, 1)
        self.insert(head, OTHER, 2)
        self.insert(rest, LAST, 3)
        for parent, tokens, block in ((head, OTHER, 2), (rest, (7,), 3)):
            self.cache.insert_tail(parent, tokens, self.blocks[block], 0, 0, entry_index=0, save_logits=True)
        self.cache.commit(keep=True)
        self.cache.confirm()

    def insert(self, parent: Node | None, tokens: tuple[int, ...], block: int) -> Node:
        return self.cache.insert_block(parent, tokens, self.blocks[block], 0, 0)

    def stored(self) -> int:
        return len(replayed(self.log).stored)

    def findable(self) -> list[bool]:
        return [self.pool.is_findable(block) for block in self.blocks]


def test_a_block_takes_all_that_follows_it_along() -> None:
    tree = Tree()
    tree.cache.unlist(tree.blocks[1])
    assert tree.findable() == [True, False, True, False]
    assert tree.stored() == 2
    tree = Tree()
    tree.cache.unlist(tree.blocks[0])
    assert not any(tree.findable())
    assert tree.stored() == 0
    assert sorted(tree.cache.take_dropped_logits()) == [0, 1]
    assert not tree.cache._siblings._following


def test_blocks_are_listed_again_behind_a_new_parent() -> None:
    tree = Tree()
    tree.cache.unlist(tree.blocks[0])
    tree.list_all()
    assert all(tree.findable())
    assert tree.stored() == 4
    tree.cache.clear()
    assert not any(tree.findable())
    assert tree.stored() == 0


def test_blocks_with_colliding_hashes_are_not_taken_for_each_other() -> None:
    one, other, look_up = (-1, -1), (-2, -2), Lookup(0, True, True)
    assert hash(one) == hash(other)  # as Python gives -1 and -2 the same
    tree = Tree()
    tree.cache.insert_block(None, one, tree.pool.allocate(), 0, 0)
    tree.cache.commit(keep=True)
    assert tree.cache.find_block(None, one, look_up) is not None
    assert tree.cache.find_block(None, other, look_up) is None


def test_what_followed_an_evicted_block_is_explained_as_evicted() -> None:
    tree = Tree()
    for block in reversed(tree.blocks):
        tree.pool.release(block)
    tree.pool.acquire(tree.blocks[1])
    tree.pool.acquire(tree.blocks[3])
    while tree.findable()[0]:
        tree.cache.step_id += 1
        tree.pool.allocate()
    evicted = tree.cache.step_id
    tree.cache.step_id += 1
    head = tree.insert(None, HEAD, 0)
    miss = tree.cache.explain(head, REST, 2, full=True, committed=True)
    assert (miss.reason, miss.step_id) == (MissReason.EVICTED, evicted)


def test_a_long_prompt_is_removed_at_once() -> None:
    """One level after the other, since a prompt may have more blocks than Python allows calls within each other."""
    pool, log = BlockPool(num_blocks=5001, block_size=1), CacheLog()
    cache, parent = PrefixCache(pool, max_saved_logits=1, log=log), None
    first = pool.allocate()
    for token in range(5000):
        block = first if parent is None else pool.allocate()
        if token % 2:
            cache.insert_tail(parent, (token,), block, 0, 0, entry_index=0, save_logits=False)
        parent = cache.insert_block(parent, (token,), block, 0, 0)
    cache.commit(keep=True)
    cache.confirm()
    assert len(replayed(log, tree := CacheTree()).stored) == 5000
    cache.unlist(first)
    assert not replayed(log, tree).stored
    assert not any(pool.is_findable(block) for block in range(5001))


@pytest.mark.parametrize("length", [2 * BLOCK_SIZE, 3 * BLOCK_SIZE - 1])
def test_blocks_behind_another_request_s_evicted_ones_are_listed_again(length: int) -> None:
    """A request that computes a cached prompt itself, for log-probabilities, does not hold the blocks that are cached.
    These are evicted before it fills its third block, or, with a longer prompt, after that and before its fourth."""
    rig = Rig(num_blocks=9)
    rig.served(range(length), max_new_tokens=1)
    request = rig.add(range(length), 4 * BLOCK_SIZE - length + 1, prompt_logprobs=0)
    while request.num_tokens < length + 3:
        rig.step()
    rig.served([99] * (3 * BLOCK_SIZE), max_new_tokens=1)
    (again,) = rig.served([*request.token_ids[: 4 * BLOCK_SIZE], 7], max_new_tokens=1)
    assert again.num_cached_tokens == 4 * BLOCK_SIZE


def test_what_is_shared_in_a_step_behind_dropped_blocks_is_not_kept() -> None:
    """With the prefix cache off, two requests share within each step. It is switched on before such a step is over."""
    rig = Rig(prefix_cache=False, prefill_max_tokens=BLOCK_SIZE)
    for _ in range(2):
        rig.add(range(3 * BLOCK_SIZE), 6)
    rig.step()
    rig.launch()
    assert rig.steps[-1].shared_tokens == BLOCK_SIZE
    rig.set_knobs(prefix_cache=True)
    rig.land()
    assert not any(rig.scheduler.pool.is_findable(block) for block in rig.requests[0].block_table)
    rig.run()
    (again,) = rig.served(range(3 * BLOCK_SIZE), max_new_tokens=1)
    assert again.num_cached_tokens == 3 * BLOCK_SIZE
