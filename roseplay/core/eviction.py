"""The order in which free blocks are taken.

Blocks without content go first, cached ones by rank, and those of one rank in the order in which they were freed. With
``lru``, all cached blocks have the same rank. With ``lfu`` it is the number of requests that have held the block, plus
an age: the rank of the block that was evicted last. So each request that used a block outweighs about one turnover of
the rest of the cache, and what is used no more is evicted in the end (LFU with dynamic aging, Arlitt et al., 1999).
Pinned blocks rank above all others.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush

_NO_CONTENT, _PINNED = -1, 1 << 60  # ranks


class FreeBlocks:
    """The free blocks, and what decides when each block is taken once it is free.

    Args:
        num_blocks: number of blocks, including block 0, which is never free.

    Attributes:
        pinned_blocks: number of a prompt's first blocks that are pinned when a second request uses them.
        pinned: the blocks that are pinned, at most half of all.
    """

    def __init__(self, num_blocks: int) -> None:
        self.pinned_blocks = 0
        self.pinned: set[int] = set()
        self._most_pinned = (num_blocks - 1) // 2
        self._policy, self._age = "lru", 0
        self._uses = [0] * num_blocks  # requests that have held the block since it was allocated
        self._of_rank: dict[int, OrderedDict[int, None]] = {_NO_CONTENT: OrderedDict.fromkeys(range(1, num_blocks))}
        self._ranks = [_NO_CONTENT]  # a heap of the keys above; some may have no blocks any more
        self._rank = dict.fromkeys(self._of_rank[_NO_CONTENT], _NO_CONTENT)

    def __len__(self) -> int:
        return len(self._rank)

    def add(self, block: int, *, findable: bool) -> None:
        """Add a block behind others of its rank; one without content before them, so that few blocks are ever used."""
        rank = self._ranked(block) if findable else _NO_CONTENT
        if rank not in self._of_rank:
            self._drop_empty_ranks()
            self._of_rank[rank] = OrderedDict()
            heappush(self._ranks, rank)
        self._rank[block] = rank
        self._of_rank[rank][block] = None
        if not findable:
            self._of_rank[rank].move_to_end(block, last=False)

    def _drop_empty_ranks(self) -> None:
        """Drop ranks without blocks once they are the most: with ``lfu``, each use of a block leaves one behind."""
        if len(self._ranks) > 2 * len(self._rank) + 64:
            self._of_rank = {rank: blocks for rank, blocks in self._of_rank.items() if blocks}
            self._ranks = sorted(self._of_rank)  # a sorted list is a heap

    def _ranked(self, block: int) -> int:
        if block in self.pinned:
            return _PINNED
        return self._age + self._uses[block] if self._policy == "lfu" else 0

    def remove(self, block: int) -> None:
        del self._of_rank[self._rank.pop(block)][block]

    def take(self) -> int:
        """Remove and return the next block."""
        while not (blocks := self._of_rank[self._ranks[0]]):
            del self._of_rank[heappop(self._ranks)]
        block, _ = blocks.popitem(last=False)
        rank = self._rank.pop(block)
        if rank == _PINNED:
            self.pinned.remove(block)
        elif rank != _NO_CONTENT:
            self._age = rank
        self._uses[block] = 1
        return block

    def count_use(self, block: int) -> None:
        """Count another request that holds the block."""
        self._uses[block] += 1

    def pin(self, block: int) -> bool:
        """Pin a block that is not free; returns False if it is pinned already, or half of all blocks are."""
        if block in self.pinned or len(self.pinned) >= self._most_pinned:
            return False
        self.pinned.add(block)
        return True

    def set_policy(self, policy: str, pinned_blocks: int) -> set[int]:
        """Rank free blocks by ``lru`` or ``lfu``. Another number of ``pinned_blocks`` unpins all; returns those.

        Of blocks that have equal ranks then, those that would have been taken earlier still are.
        """
        unpinned: set[int] = set()
        if pinned_blocks != self.pinned_blocks:
            self.pinned_blocks = pinned_blocks
            self.pinned, unpinned = unpinned, self.pinned
        if unpinned or policy != self._policy:
            self._policy = policy
            ranks = sorted(rank for rank in self._of_rank if rank != _NO_CONTENT)
            for block in [block for rank in ranks for block in self._of_rank[rank]]:
                self.remove(block)
                self.add(block, findable=True)
        return unpinned
