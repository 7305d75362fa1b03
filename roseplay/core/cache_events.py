"""Events of the prefix cache, for routers outside the engine.

Only full blocks are reported. A block is identified by a hash of all tokens up to its end, so equal prefixes have equal
hashes whichever block holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Stored(NamedTuple):
    """A full block can be found from now on."""

    block_hash: int  # hash of all tokens up to the block's end, a signed 64-bit integer
    parent_hash: int | None  # hash of the block before it; None for the first block of a prompt


class Removed(NamedTuple):
    """No block with this hash can be found from now on."""

    block_hash: int


class Cleared(NamedTuple):
    """The whole cache has been emptied."""


CacheEvent = Stored | Removed | Cleared


def block_hash(history: int, token_ids: tuple[int, ...]) -> int:
    """Returns the hash of a full block's tokens and all tokens before them.

    It is the same in all processes of one version of Python, which does not randomise the hashes of integers and of
    tuples of integers.

    Args:
        history: hash of the tokens before the block, 0 for the first block.
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
    """Collects events until ``take`` is called. The first one is ``Cleared``, since the cache starts empty.

    A block is stored once at most, only while its parent is, and removed before its parent.
    """

    def __init__(self) -> None:
        self._events: list[CacheEvent] = [Cleared()]

    def store(self, block_hash: int, parent_hash: int | None) -> None:
        """Record that the block with this hash can now be found."""
        self._events.append(Stored(block_hash, parent_hash))

    def remove(self, block_hash: int) -> None:
        """Record that the block with this hash, stored before, can no longer be found."""
        self._events.append(Removed(block_hash))

    def clear(self) -> None:
        """Record that the cache is empty."""
        self._events.append(Cleared())

    def take(self) -> list[CacheEvent]:
        """Returns the events since the last call."""
        events, self._events = self._events, []
        return events
