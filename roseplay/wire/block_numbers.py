"""Numbers for cached blocks that other engines identify only by hashes, so that a block map can show them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from roseplay.engine.records import BlockChange
from roseplay.recording.schema import MAX_BLOCKS
from roseplay.wire.kv_events import BlockHash, BlockRemoved, BlockStored, KvEvent
from roseplay.wire.problems import Problems


class BlockNumbers:
    """Numbers blocks from 1 in order of arrival, reusing numbers of removed blocks first, lowest first.

    Args:
        most: upper limit of the numbers, exclusive.

    Attributes:
        highest: the highest number so far.
        block_size: tokens per block; ``None`` before the first.
    """

    def __init__(self, problems: Problems, most: int = MAX_BLOCKS) -> None:
        self._problems = problems
        self._most = most
        self._numbers: dict[tuple[int | None, BlockHash], int] = {}  # by KV cache group and hash
        self._free: list[int] = []
        self.highest = 0
        self.block_size: int | None = None

    @property
    def cached(self) -> int:
        """Blocks that can be found now."""
        return len(self._numbers)

    def take(self, event: KvEvent) -> Iterator[BlockChange]:
        """Apply an event; yields the blocks that it changes, without references or an owner, which are unknown."""
        if not isinstance(event, BlockStored | BlockRemoved):
            yield from self.clear()
        elif event.medium is not None and event.medium.lower() != "gpu":
            self._problems.skip(f"KV events: blocks in {event.medium[:40]!r}", len(event.block_hashes))
        elif isinstance(event, BlockStored):
            self.block_size = self.block_size or event.block_size
            for block_hash in event.block_hashes:
                yield from self._store((event.group_idx, block_hash))
        else:
            for block_hash in event.block_hashes:
                yield from self._remove((event.group_idx, block_hash))

    def clear(self) -> Iterator[BlockChange]:
        """Remove all blocks; yields their new states."""
        for key in list(self._numbers):
            yield from self._remove(key)

    def _store(self, key: tuple[int | None, BlockHash]) -> Iterator[BlockChange]:
        if key in self._numbers:
            return
        if not self._free and self.highest + 1 >= self._most:
            self._problems.skip("KV events: more blocks than a recording holds")
            return
        if self._free:
            number = heapq.heappop(self._free)
        else:
            number = self.highest = self.highest + 1
        self._numbers[key] = number
        yield BlockChange(number, 0, -1, 1)

    def _remove(self, key: tuple[int | None, BlockHash]) -> Iterator[BlockChange]:
        number = self._numbers.pop(key, None)
        if number is None:
            self._problems.skip("KV events: removed blocks that were stored before the import began")
            return
        heapq.heappush(self._free, number)
        yield BlockChange(number, 0, -1, 0)
