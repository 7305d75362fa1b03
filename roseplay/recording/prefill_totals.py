"""Totals of prompt tokens since the server started: computed, and saved by sharing."""

from __future__ import annotations

from typing import Any


class PrefillTotals:
    """Sums over all requests, of lanes, bursts and programs.

    ``computed`` counts each prompt token once: what a preempted request computes again counts neither as computed nor
    as saved. When all requests have completed, ``prompt_tokens = computed + cached + shared``; the rest of a prompt
    that was stopped early is in none of them. Not thread-safe.

    Args:
        block_size: tokens of a KV block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.requests = self.prompt_tokens = 0
        self.computed = self.cached = self.shared = self.blocks_saved = 0

    def submitted(self, prompt_tokens: int) -> None:
        self.requests += 1
        self.prompt_tokens += prompt_tokens

    def progressed(self, reached: int, before: tuple[int, int], after: tuple[int, int]) -> None:
        """Count the progress of a request's prompt: ``reached`` more tokens, each for the first time.

        Args:
            before, after: tokens of the prompt found in the cache, and shared within a step, before and after the
                progress.
        """
        saved = sum(after) - sum(before)
        self.computed += max(0, reached - saved)
        self.cached += after[0] - before[0]
        self.shared += after[1] - before[1]
        self.blocks_saved += sum(after) // self._block_size - sum(before) // self._block_size

    @property
    def saved(self) -> int:
        return self.cached + self.shared

    def figures(self) -> dict[str, Any]:
        """Returns the totals for a frame's ``stats``."""
        return {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "computed": self.computed,
            "saved": self.saved,
            "blocks_saved": self.blocks_saved,
            "cached": self.cached,
            "shared": self.shared,
        }
