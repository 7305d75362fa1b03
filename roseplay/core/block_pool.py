"""The pool of KV blocks: who holds which, which are free, and in what order free ones are taken.

A block is *active* (one holder), *shared* (several), *cached* (no holder, but its content can still be found) or
*free*. Block 0 is never handed out: padding writes go there. The idea of paged KV blocks with reference counts is
PagedAttention's (Kwon et al., 2023).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class OutOfBlocksError(RuntimeError):
    """No free block is left; the scheduler preempts somebody or waits."""


class BlockPool:
    """Reference counts and the LRU list of free blocks.

    Args:
        num_blocks: all blocks, block 0 included.
        block_size: tokens a block holds.
        on_evict: called with a block's id when its findable content is about to be lost.
    """

    def __init__(self, num_blocks: int, block_size: int, on_evict: Callable[[int], None] | None = None) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}: at least 2 are needed, block 0 is never handed out")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.on_evict = on_evict
        self.ref_counts = [0] * num_blocks
        self._findable = bytearray(num_blocks)
        # Front is taken next: blocks without content first, then the least recently freed.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._num_cached = 0
        self._num_shared = 0
        self._changed: set[int] = set()

    @property
    def num_usable(self) -> int:
        """Blocks that can be handed out at all."""
        return self.num_blocks - 1

    @property
    def num_available(self) -> int:
        """Blocks without a holder: free or cached."""
        return len(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free) - self._num_cached

    @property
    def num_cached(self) -> int:
        return self._num_cached

    @property
    def num_shared(self) -> int:
        return self._num_shared

    @property
    def num_active(self) -> int:
        return self.num_usable - len(self._free) - self._num_shared

    def take_changed(self) -> list[int]:
        """Blocks whose references or findability changed since the last call; before the first, since all were free."""
        changed, self._changed = self._changed, set()
        return sorted(changed)

    def is_findable(self, block: int) -> bool:
        return bool(self._findable[block])

    def allocate(self) -> int:
        """A block with one reference, its former content forgotten.

        Raises:
            OutOfBlocksError: every block has a holder.
        """
        if not self._free:
            raise OutOfBlocksError(f"all {self.num_usable} KV blocks are in use")
        block, _ = self._free.popitem(last=False)
        if self._findable[block]:
            self._num_cached -= 1
            self._findable[block] = 0
            if self.on_evict is not None:
                self.on_evict(block)
        self.ref_counts[block] = 1
        self._changed.add(block)
        return block

    def acquire(self, block: int) -> None:
        """One more holder for a block that is held or cached."""
        count = self.ref_counts[block]
        if count == 0:
            if not self._findable[block]:
                raise ValueError(f"block {block} is free and has no content to share")
            del self._free[block]
            self._num_cached -= 1
        elif count == 1:
            self._num_shared += 1
        self.ref_counts[block] = count + 1
        self._changed.add(block)

    def release(self, block: int) -> None:
        """One holder less. The last one's block goes to the free list, and stays findable until it is taken.

        Raises:
            ValueError: nobody holds the block; releasing twice is a bug in the caller.
        """
        count = self.ref_counts[block]
        if count <= 0:
            raise ValueError(f"block {block} is released more often than it was acquired")
        self.ref_counts[block] = count - 1
        self._changed.add(block)
        if count == 2:
            self._num_shared -= 1
        elif count == 1:
            self._free[block] = None
            if self._findable[block]:
                self._num_cached += 1
            else:
                self._free.move_to_end(block, last=False)

    def set_findable(self, block: int, findable: bool) -> None:
        """Note whether a block's content can be found; the prefix cache calls this."""
        if bool(self._findable[block]) == findable:
            return
        self._findable[block] = findable
        self._changed.add(block)
        if self.ref_counts[block] == 0:
            self._num_cached += 1 if findable else -1
            self._free.move_to_end(block, last=findable)
