"""Why a request had to compute prompt tokens itself: what was known of them when the prefix cache did not have them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable
from enum import StrEnum
from typing import NamedTuple

MOST_LOST = 4096  # contents that are remembered after they were lost
MOST_QUOTED = 8  # tokens of another prompt


class MissReason(StrEnum):
    """Why the first token that a request computed of its prompt was not found."""

    OFF = "off"  # the prefix cache is off
    COMPUTING = "computing"  # it is being computed right now
    EVICTED = "evicted"  # it was cached, and its block was given to somebody else
    CLEARED = "cleared"  # it was cached until the cache was cleared, or switched off
    DIFFERS = "differs"  # what is cached has another token further on in this block
    SHORT = "short"  # the rest of the prompt does not fill a block
    UNFILLED = "unfilled"  # what is cached ends within this block
    ENDS = "ends"  # what is cached ends with the block before
    NEW = "new"  # nothing that is cached begins with its first token
    LOGPROBS = "logprobs"  # it asked for log-probabilities of its prompt, which only computing it gives
    STATE = "state"  # the model has recurrent layers, and no state of them is kept there
    LOGITS = "logits"  # all is there but what the first token of the answer is drawn from


class Miss(NamedTuple):
    """Why, and what is known beside it.

    Attributes:
        found: tokens that were in the request's blocks by then.
        position: of the first of its tokens that is not what the nearest cached content has, at least ``found``.
        request_id: who computed the nearest content, or computes the same one; -1 for nobody.
        step_id: when it was lost, -1 for never.
        tokens: how the nearest content goes on from ``position``, at most ``MOST_QUOTED`` of them.
    """

    reason: MissReason
    found: int
    position: int
    request_id: int = -1
    step_id: int = -1
    tokens: tuple[int, ...] = ()


class Siblings:
    """What follows each cached block, in order, so that the nearest to other tokens is found by bisection."""

    def __init__(self) -> None:
        self._following: dict[Hashable, list[tuple[int, ...]]] = {}

    def add(self, parent: Hashable, tokens: tuple[int, ...]) -> None:
        following = self._following.get(parent)
        if following is None:  # nearly always
            self._following[parent] = [tokens]
        else:
            insort(following, tokens)

    def remove(self, parent: Hashable, tokens: tuple[int, ...]) -> None:
        """Take back one ``add``."""
        following = self._following[parent]
        if len(following) == 1:
            del self._following[parent]
        else:
            del following[bisect_left(following, tokens)]

    def nearest(self, parent: Hashable, tokens: tuple[int, ...]) -> tuple[int, ...] | None:
        """Which one begins with most of these tokens; None where nothing follows ``parent``."""
        following = self._following.get(parent)
        if following is None:
            return None
        at = bisect_left(following, tokens)  # in order, it stands right before or behind
        return max(following[max(0, at - 1) : at + 1], key=lambda other: common(other, tokens))


class Lost:
    """The contents that were lost last, by the hash of all tokens before them and their own."""

    def __init__(self, most: int = MOST_LOST) -> None:
        self._most = most
        self._lost: dict[tuple[int, tuple[int, ...]], tuple[int, bool]] = {}

    def add(self, history: int, tokens: tuple[int, ...], step_id: int, cleared: bool) -> None:
        key = history, tokens
        self._lost.pop(key, None)  # it becomes the newest one
        self._lost[key] = step_id, cleared
        if len(self._lost) > self._most:
            del self._lost[next(iter(self._lost))]

    def find(self, history: int, tokens: tuple[int, ...]) -> tuple[int, bool] | None:
        """When these tokens were lost, and whether because the cache was cleared; None when that is not known."""
        return self._lost.get((history, tokens))


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens two contents begin with alike."""
    if one == other:
        return len(one)
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
