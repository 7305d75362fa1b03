"""The pool of KV blocks: how many requests hold each block, which are free, and the order in which free ones are taken.

A block is *active* (one holder), *shared* (several), *cached* (no holder, but its content can still be found) or
*free*. Block 0 is never handed out: padding writes go there. Paged KV blocks with reference counts come from
PagedAttention (Kwon et al., 2023).
"""

from __future__ import annotations

from collections.abc import Callable

from roseplay.core.eviction import FreeBlocks


class OutOfBlocksError(RuntimeError):
    """No free block is left; the scheduler preempts a request or waits."""


class BlockPool:
    """Reference counts and the free blocks.

    Args:
        num_blocks: number of blocks, including block 0.
        block_size: tokens per block.

    Attributes:
        on_evict: called with a block's id when it is reused and its findable content is lost.
        num_cached, num_shared: the number of blocks in these states.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}: at least 2 are needed, block 0 is never handed out")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.on_evict: Callable[[int], None] | None = None
        self.ref_counts = [0] * num_blocks
        self._findable = bytearray(num_blocks)
        self._free = FreeBlocks(num_blocks)
        self.num_cached = 0
        self.num_shared = 0
        self._changed: set[int] = set()

    @property
    def num_usable(self) -> int:
        """The number of blocks that can be handed out at all."""
        return self.num_blocks - 1

    @property
    def num_available(self) -> int:
        """The number of blocks without a holder, free or cached."""
        return len(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free) - self.num_cached

    @property
    def num_active(self) -> int:
        return self.num_usable - len(self._free) - self.num_shared

    def take_changed(self) -> list[int]:
        """Returns the blocks whose references or findability changed since the last call, or since the beginning."""
        changed, self._changed = self._changed, set()
        return sorted(changed)

    def is_findable(self, block: int) -> bool:
        return bool(self._findable[block])

    def is_pinned(self, block: int) -> bool:
        return block in self._free.pinned

    def set_eviction(self, policy: str, pinned_blocks: int) -> None:
        """Set which cached block is taken next, and how many first blocks of a prompt ``pin_first`` pins."""
        self._changed |= self._free.set_policy(policy, pinned_blocks)

    def pin_first(self, blocks: list[int]) -> None:
        """Pin the first of a prompt's held, findable blocks, as far as the settings and the bound allow."""
        self._changed.update(block for block in blocks[: self._free.pinned_blocks] if self._free.pin(block))

    def allocate(self) -> int:
        """Take a free block and return it with one reference; its former content can no longer be found.

        Raises:
            OutOfBlocksError: all blocks are held.
        """
        if not self._free:
            raise OutOfBlocksError(f"all {self.num_usable} KV blocks are in use")
        block = self._free.take()
        if self._findable[block]:
            self.num_cached -= 1
            self._findable[block] = 0
            if self.on_evict is not None:
                self.on_evict(block)
        self.ref_counts[block] = 1
        self._changed.add(block)
        return block

    def acquire(self, block: int) -> None:
        """Add a holder to a block that is held or cached. Raises ``ValueError`` for a free block."""
        count = self.ref_counts[block]
        if count == 0:
            if not self._findable[block]:
                raise ValueError(f"block {block} is free and has no content to share")
            self._free.remove(block)
            self.num_cached -= 1
        elif count == 1:
            self.num_shared += 1
        self.ref_counts[block] = count + 1
        self._free.count_use(block)
        self._changed.add(block)

    def release(self, block: int) -> None:
        """Remove a holder. After the last one the block is free to be taken, and its content can be found until then.

        Raises:
            ValueError: the block has no holder; releasing twice is a bug in the caller.
        """
        count = self.ref_counts[block]
        if count <= 0:
            raise ValueError(f"block {block} is released more often than it was acquired")
        self.ref_counts[block] = count - 1
        self._changed.add(block)
        if count == 2:
            self.num_shared -= 1
        elif count == 1:
            self._free.add(block, findable=bool(self._findable[block]))
            self.num_cached += self._findable[block]

    def set_findable(self, block: int, findable: bool) -> None:
        """Record whether a block's content can be found; called by the prefix cache."""
        if bool(self._findable[block]) == findable:
            return
        self._findable[block] = findable
        self._changed.add(block)
        self._free.pinned.discard(block)
        if self.ref_counts[block] == 0:
            self.num_cached += 1 if findable else -1
            self._free.remove(block)
            self._free.add(block, findable=findable)
