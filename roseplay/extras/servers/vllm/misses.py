"""Why vLLM had to compute part of a prompt, as ``core.cache_miss`` says it of our engine, from the hashes of its blocks.

A hash stands for all tokens up to the end of its block: prompts with the same hash begin the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from roseplay.core.cache_miss import Miss, MissReason

_MOST = 1 << 18  # hashes that are remembered


class Misses:
    """The blocks of prompts that vLLM has computed since its steps are followed."""

    def __init__(self) -> None:
        self.block_size = 1  # in tokens
        self.is_off = False  # whether vLLM caches nothing
        self._computed: dict[int, bool] = {}  # by hash, the newest last: whether the cache was cleared since

    def compute(self, hashes: Sequence[int], before: int, tokens: int) -> None:
        """Note that the next ``tokens`` of a prompt were computed, after the ``before`` that were."""
        for block in hashes[before // self.block_size : (before + tokens) // self.block_size]:
            self._computed.pop(block, None)
            self._computed[block] = False
        while len(self._computed) > _MOST:
            del self._computed[next(iter(self._computed))]

    def clear(self) -> None:
        """Note that the cache was cleared."""
        self._computed = dict.fromkeys(self._computed, True)

    def explain(self, hashes: Sequence[int], found: int, prompt: int) -> Miss | None:
        """Returns why a prompt's tokens from ``found`` on were not cached; ``None`` if that is not known."""
        index = found // self.block_size
        if self.is_off:
            return Miss(MissReason.OFF, found, found)
        if len(hashes) != prompt // self.block_size:
            return None
        if index == len(hashes):
            return Miss(MissReason.SHORT, found, found)
        cleared = self._computed.get(hashes[index])
        if cleared is None:
            return Miss(MissReason.DIFFERS, found, -1)
        if found + self.block_size == prompt:
            return None  # vLLM computes a prompt's last token itself, and so its whole block, even if that is cached
        return Miss(MissReason.CLEARED if cleared else MissReason.EVICTED, found, found)
