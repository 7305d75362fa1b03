"""Why a request had to compute prompt tokens itself: the reason for the miss and the nearest content in the cache."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable
from enum import StrEnum
from typing import NamedTuple

MOST_LOST = 4096  # entries that are remembered after they were lost
MOST_QUOTED = 8  # tokens of another prompt that a ``Miss`` quotes


class MissReason(StrEnum):
    """Why the first prompt token that a request computed itself was not found in the cache."""

    OFF = "off"  # the prefix cache is off
    COMPUTING = "computing"  # another request is computing it right now
    EVICTED = "evicted"  # it was cached, but its block was needed for other tokens
    CLEARED = "cleared"  # it was cached until the cache was cleared, or switched off
    DIFFERS = "differs"  # the nearest cached block has another token further on
    SHORT = "short"  # the rest of the prompt does not fill a block
    UNFILLED = "unfilled"  # the cached content ends within this block
    ENDS = "ends"  # the cached content ends with the block before
    NEW = "new"  # nothing cached begins with the prompt's first token
    LOGPROBS = "logprobs"  # log-probabilities of the prompt were requested, which requires computing it
    STATE = "state"  # the model has recurrent layers, and no state of them is kept there
    LOGITS = "logits"  # the whole prompt is cached, but not the logits to draw the first token from


class Miss(NamedTuple):
    """A cache miss: its reason, and what is known about the nearest cached content."""

    reason: MissReason
    found: int  # number of tokens that were in the request's blocks by then
    # Position of its first token that differs from the nearest cached content; at least ``found``, or -1 if only its
    # block is known.
    position: int
    request_id: int = -1  # the request that computed that content, or is computing the same; -1 for none
    step_id: int = -1  # the step in which the content was lost, -1 for never
    tokens: tuple[int, ...] = ()  # how that content continues from ``position``, at most ``MOST_QUOTED`` tokens


def compared(
    tokens: tuple[int, ...], start: int, nearest: tuple[int, ...], by: int, *, first: bool, full: bool
) -> Miss:
    """Returns the miss for ``tokens``, at position ``start``, where the cache holds other content.

    Args:
        nearest: the most similar of it; () if there is none.
        by: the request that computed it, -1 for none.
        first: whether the tokens begin the prompt.
        full: whether the tokens fill a block; else the prompt ends with them.
    """
    equal = common(nearest, tokens)
    if first and not equal:
        return Miss(MissReason.NEW, start, start)
    if not nearest:
        return Miss(MissReason.ENDS if full else MissReason.SHORT, start, start)
    reason = MissReason.SHORT
    if full:
        reason = MissReason.UNFILLED if equal == len(nearest) else MissReason.DIFFERS
    return Miss(reason, start, start + equal, by, tokens=nearest[equal : equal + MOST_QUOTED])


class Siblings:
    """The contents that follow each cached block, sorted, so that the nearest to other tokens is found by bisection."""

    def __init__(self) -> None:
        self._following: dict[Hashable, list[tuple[int, ...]]] = {}

    def add(self, parent: Hashable, tokens: tuple[int, ...]) -> None:
        following = self._following.get(parent)
        if following is None:  # nearly always
            self._following[parent] = [tokens]
        else:
            insort(following, tokens)

    def remove(self, parent: Hashable, tokens: tuple[int, ...]) -> None:
        """Undo one ``add``."""
        following = self._following[parent]
        if len(following) == 1:
            del self._following[parent]
        else:
            del following[bisect_left(following, tokens)]

    def behind(self, parent: Hashable) -> list[tuple[int, ...]]:
        """Returns the contents that follow a block, each once."""
        return list(dict.fromkeys(self._following.get(parent, ())))

    def nearest(self, parent: Hashable, tokens: tuple[int, ...]) -> tuple[int, ...] | None:
        """Returns the content behind ``parent`` with the longest common prefix, or None."""
        if (following := self._following.get(parent)) is None:
            return None
        at = bisect_left(following, tokens)  # the nearest one is a neighbour in sorted order
        return max(following[max(0, at - 1) : at + 1], key=lambda other: common(other, tokens))


class Lost:
    """The most recently lost contents, keyed by the hash of all tokens before them and their own tokens."""

    def __init__(self, most: int = MOST_LOST) -> None:
        self._most = most
        self._lost: dict[tuple[int, tuple[int, ...]], tuple[int, MissReason]] = {}

    def add(self, history: int, tokens: tuple[int, ...], step_id: int, reason: MissReason) -> None:
        key = history, tokens
        self._lost.pop(key, None)  # so that it is inserted as the newest
        self._lost[key] = step_id, reason
        if len(self._lost) > self._most:
            del self._lost[next(iter(self._lost))]

    def find(self, history: int, tokens: tuple[int, ...]) -> tuple[int, MissReason] | None:
        """Returns the step in which these tokens were lost, and why; None if not known."""
        return self._lost.get((history, tokens))


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Returns the length of the common prefix."""
    if one == other:
        return len(one)
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
