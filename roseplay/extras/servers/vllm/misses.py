"""Why vLLM had to compute part of a prompt, as ``core.cache_miss`` says it of our engine, from the hashes of its blocks.

A hash stands for all tokens up to the end of its block: prompts with the same hash begin the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from roseplay.core.cache_miss import Miss, MissReason

_MOST = 1 << 18  # hashes that are remembered
_DRAFTS_APART = (None, "ngram", "suffix")  # other drafts need the last block that is found, which is computed again


class Misses:
    """The blocks of prompts that a vLLM with these settings has computed since its steps are followed."""

    def __init__(self, block_size: int = 1, settings: Mapping[str, Any] = {}) -> None:
        self._block_size, self._is_off = block_size, settings.get("enable_prefix_caching") is False
        # Only a cache of full attention keeps every block that was computed, until it is evicted.
        full = settings.get("kv_specs") == "['FullAttentionSpec']"
        self._keeps_all = full and settings.get("method") in _DRAFTS_APART
        self._computed: dict[int, bool] = {}  # by hash, the newest last: whether the cache was cleared since

    def compute(self, hashes: Sequence[int], before: int, tokens: int) -> None:
        """Note that the next ``tokens`` of a prompt were computed, after the ``before`` that were."""
        for block in hashes[before // self._block_size : (before + tokens) // self._block_size]:
            self._computed.pop(block, None)
            self._computed[block] = False
        while len(self._computed) > _MOST:
            del self._computed[next(iter(self._computed))]

    def cleared(self) -> Self:
        """Note that the cache was cleared."""
        self._computed = dict.fromkeys(self._computed, True)
        return self

    def explain(self, hashes: Sequence[int], found: int, prompt: int) -> Miss | None:
        """Returns why a prompt's tokens from ``found`` on were not cached; ``None`` if that is not known."""
        index, size = found // self._block_size, self._block_size
        if self._is_off:
            return Miss(MissReason.OFF, found, found)
        if not self._keeps_all or len(hashes) != prompt // size or found % size:
            return None
        if index == len(hashes):
            return Miss(MissReason.SHORT, found, found)
        if found + size == prompt:
            return None  # vLLM computes a prompt's last token itself, and so its whole block, even if that is cached
        if (cleared := self._computed.get(hashes[index])) is None:
            return Miss(MissReason.DIFFERS, found, -1)
        return Miss(MissReason.CLEARED if cleared else MissReason.EVICTED, found, found)
