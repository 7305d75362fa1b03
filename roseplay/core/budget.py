"""What a request may ask for at all, and how many prompt tokens a step may compute."""

from __future__ import annotations

from roseplay.config import Knobs

UNLIMITED = 1 << 60


class RequestTooLargeError(ValueError):
    """The request can never fit, however long it waits; the message has the numbers."""


def check_fits(
    num_prompt_tokens: int, max_new_tokens: int, max_model_len: int, num_usable: int, block_size: int
) -> None:
    """Refuse a request that no waiting would make fit.

    Raises:
        RequestTooLargeError: with the numbers, and what to change.
    """
    total = num_prompt_tokens + max_new_tokens
    if total > max_model_len:
        raise RequestTooLargeError(
            f"{num_prompt_tokens} prompt tokens + {max_new_tokens} new tokens = {total}, but the model's limit is "
            f"{max_model_len}: shorten the prompt or lower max_new_tokens"
        )
    needed = -(-total // block_size)
    if needed > num_usable:
        raise RequestTooLargeError(
            f"{num_prompt_tokens} prompt tokens + {max_new_tokens} new tokens need {needed} KV blocks of {block_size} "
            f"tokens, but the pool has {num_usable}: lower max_new_tokens or start with more num_blocks"
        )


class PromptBudget:
    """What is left in one step for prompts: tokens, and requests that compute some.

    Args:
        step_max_tokens: tokens of a step; a prompt that is to be computed whole may exceed it.
        token_limit: tokens of a step that the device has memory for; even a prompt that is to be computed whole is
            computed in parts when it is over this. None is unlimited.
    """

    def __init__(
        self, knobs: Knobs, step_max_tokens: int, token_limit: int | None, block_size: int, num_decodes: int
    ) -> None:
        prefill = knobs.prefill_max_tokens or UNLIMITED
        device = token_limit or UNLIMITED
        step = min(step_max_tokens, device)
        self._room = max(0, device - num_decodes)
        self._block_size = block_size
        self._chunked = knobs.chunked_prefill
        self._largest = min(prefill, step)
        self._tokens = min(prefill, step - num_decodes)
        self._requests = knobs.prefill_max_batch_size or UNLIMITED
        self._used = False

    def chunk(self, start: int, end: int) -> int:
        """How many of a request's tokens ``[start, end)`` may be computed now.

        A part that is not the last ends on a block boundary when the budget allows one whole block.
        """
        wanted = end - start
        if self._requests <= 0:
            return 0
        if not self._chunked:
            if wanted > self._largest:  # over any budget: it goes as the step's only prompt
                return 0 if self._used else min(wanted, self._room)
            return wanted if wanted <= self._tokens else 0
        if wanted <= self._tokens or self._tokens <= 0:
            return max(0, min(wanted, self._tokens))
        stop = start + self._tokens
        aligned = stop - stop % self._block_size
        return aligned - start if self._tokens >= self._block_size and aligned > start else self._tokens

    def spend(self, tokens: int, wanted: int) -> None:
        """``tokens`` of the ``wanted`` ones of a request are computed in this step.

        Where a prompt was cut nobody else computes: what is left is less than a block, and those behind it may be
        about to share the rest of this very prompt.
        """
        self._used = True
        self._tokens = max(0, self._tokens - tokens) if tokens == wanted else 0
        self._requests -= 1
