"""What prompts have cost since the server started, and what sharing saved of them. It adds up and remembers no request."""

from __future__ import annotations

from typing import Any


class PrefillTotals:
    """Sums over all requests: lanes', bursts' and programs'.

    ``computed`` counts each prompt token once: what is computed again after a preemption is neither computed nor saved
    here. Once all requests have ended well, ``prompt_tokens = computed + cached + shared``; one that is stopped early
    leaves the rest of its prompt out. Not for several threads.

    Args:
        block_size: tokens that a KV block holds.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.requests = self.prompt_tokens = 0
        self.computed = self.cached = self.shared = self.blocks_saved = 0

    def submitted(self, prompt_tokens: int) -> None:
        self.requests += 1
        self.prompt_tokens += prompt_tokens

    def progressed(self, reached: int, before: tuple[int, int], after: tuple[int, int]) -> None:
        """A request's prompt has got further by ``reached`` tokens, never counted before.

        Args:
            before, after: of its prompt, tokens found in the cache and tokens shared within a step, until now.
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
        """For a frame's ``stats``."""
        return {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "computed": self.computed,
            "saved": self.saved,
            "blocks_saved": self.blocks_saved,
            "cached": self.cached,
            "shared": self.shared,
        }
