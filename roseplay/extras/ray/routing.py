"""Chooses a request's replica: the one that holds most of its prompt, unless it has far more to do than another."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    load: int  # requests that it has not finished
    resident: int  # leading blocks of the prompt that it holds
    held: int = 0  # all blocks that it is known to hold


def ranked(candidates: Sequence[Candidate], slack: int, rng: random.Random) -> list[int]:
    """Returns the indices of all candidates, the best first.

    The longest resident prefix wins, then the lowest load, then the emptier cache; ties are broken at random. A replica
    is overloaded if it has over ``slack`` requests more than the least loaded one. Then its prefix does not count,
    since waiting would cost more than computing the prompt again.
    """
    if not candidates:
        return []
    least = min(candidate.load for candidate in candidates)

    def key(index: int) -> tuple[int, int, int, float]:
        candidate = candidates[index]
        resident = candidate.resident if candidate.load <= least + slack else -1
        return -resident, candidate.load, candidate.held, rng.random()

    return sorted(range(len(candidates)), key=key)


def leading(hashes: Sequence[int], *resident: Collection[int]) -> int:
    """Returns how many leading blocks of a prompt are each in one of the collections."""
    for number, block_hash in enumerate(hashes):
        if not any(block_hash in blocks for blocks in resident):
            return number
    return len(hashes)
