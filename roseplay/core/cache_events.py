"""What enters and leaves the prefix cache, for routers and viewers outside: the content of vLLM's KV cache events.

Only full blocks count. A block is named by a hash of all tokens up to its end, so that equal prefixes have equal names
whichever block holds them; the end of a prompt that does not fill a block has no name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Stored(NamedTuple):
    """A full block can be found from now on.

    Attributes:
        block_hash: of all tokens up to its end, 64 bits with a sign.
        parent_hash: of the block before it in its prompt; None for the first one.
        token_ids: its own tokens.
    """

    block_hash: int
    parent_hash: int | None
    token_ids: tuple[int, ...]


class Removed(NamedTuple):
    """No block with this hash can be found any more."""

    block_hash: int


class Cleared(NamedTuple):
    """Nothing can be found any more."""


CacheEvent = Stored | Removed | Cleared


def block_hash(history: int, token_ids: tuple[int, ...]) -> int:
    """Returns the hash of a full block's tokens and of all before them, whose hash is ``history``, 0 for none.

    Equal in all processes of one version of Python: its hashes of integers and of tuples of them are not randomised.
    """
    return hash((history, token_ids))


def block_hashes(token_ids: Sequence[int], block_size: int) -> list[int]:
    """Returns the hashes of a prompt's full blocks, in order."""
    hashes: list[int] = []
    history = 0
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        history = block_hash(history, tuple(token_ids[start : start + block_size]))
        hashes.append(history)
    return hashes


class CacheLog:
    """Events since the last ``take``, in order. The first one is ``Cleared``: a new cache replaces whatever was before.

    Two blocks may have the same content at a time, one of them behind a parent that was evicted. Their hash is reported
    stored with the first and removed with the last.
    """

    def __init__(self) -> None:
        self._events: list[CacheEvent] = [Cleared()]
        self._blocks: Counter[int] = Counter()  # by hash, how many blocks have this content

    def store(self, block_hash: int, parent_hash: int | None, token_ids: tuple[int, ...]) -> None:
        """A block with this content can be found."""
        self._blocks[block_hash] += 1
        if self._blocks[block_hash] == 1:
            self._events.append(Stored(block_hash, parent_hash, token_ids))

    def remove(self, block_hash: int) -> None:
        """A block with this content, which was stored, can no longer be found."""
        self._blocks[block_hash] -= 1
        if not self._blocks[block_hash]:
            del self._blocks[block_hash]
            self._events.append(Removed(block_hash))

    def clear(self) -> None:
        """No block can be found."""
        self._blocks.clear()
        self._events.append(Cleared())

    def take(self) -> list[CacheEvent]:
        """Returns the events since the last call."""
        events, self._events = self._events, []
        return events
