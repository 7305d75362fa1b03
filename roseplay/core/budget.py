"""Size limits: the largest request that can be served, and how many prompt tokens a step may compute."""

from __future__ import annotations

from roseplay.config import Knobs

UNLIMITED = 1 << 60


class RequestTooLargeError(ValueError):
    """The request does not fit even an idle engine; the message gives the numbers."""


def check_fits(
    num_prompt_tokens: int,
    max_new_tokens: int,
    max_model_len: int,
    num_usable: int,
    block_size: int,
    *,
    limit: str = "max_new_tokens",
) -> None:
    """Check that a request fits the context length and the KV blocks of an idle engine.

    Args:
        limit: the sender's name for the number of new tokens.

    Raises:
        RequestTooLargeError: it does not; the message gives the numbers and says what to change.
    """
    total = num_prompt_tokens + max_new_tokens
    if total > max_model_len:
        raise RequestTooLargeError(
            f"{num_prompt_tokens} prompt tokens + {max_new_tokens} new tokens = {total}, but the model's limit is "
            f"{max_model_len}: shorten the prompt or lower {limit}"
        )
    needed = -(-total // block_size)
    if needed > num_usable:
        raise RequestTooLargeError(
            f"{num_prompt_tokens} prompt tokens + {max_new_tokens} new tokens need {needed} KV blocks of {block_size} "
            f"tokens, but the pool has {num_usable}: lower {limit} or start with more num_blocks"
        )


class PromptBudget:
    """The prompt tokens, and the requests that compute them, that one step still has room for.

    Args:
        step_max_tokens: most tokens in a step; without chunked prefill, a single longer prompt may exceed it.
        token_limit: most tokens in a step that the device has memory for; a longer prompt is computed in parts even
            without chunked prefill. None is unlimited.
        num_decodes: tokens that the step's decodes have taken already.
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
        self._of_one = knobs.chunk_max_tokens or UNLIMITED
        self._requests = knobs.prefill_max_batch_size or UNLIMITED
        self._used = False

    def chunk(self, start: int, end: int) -> int:
        """Returns how many of a request's tokens ``[start, end)`` may be computed now.

        A chunk that does not finish the prompt ends on a block boundary if the budget allows at least one whole block.
        """
        wanted = end - start
        if self._requests <= 0:
            return 0
        if not self._chunked:
            if wanted > self._largest:  # over any budget: it runs as the step's only prompt
                return 0 if self._used else min(wanted, self._room)
            return wanted if wanted <= self._tokens else 0
        most = min(self._tokens, self._of_one)
        if wanted <= most or most <= 0:
            return max(0, min(wanted, most))
        stop = start + most
        aligned = stop - stop % self._block_size
        return aligned - start if most >= self._block_size and aligned > start else most

    def spend(self, tokens: int, wanted: int) -> None:
        """Deduct ``tokens``, of the ``wanted`` tokens that a request has left to compute.

        A prompt that was cut short by the budget uses it up: less than a block is left, and the requests behind it may soon
        be able to share the rest of this prompt.
        """
        self._used = True
        goes_on = tokens == wanted or self._of_one < self._tokens
        self._tokens = max(0, self._tokens - tokens) if goes_on else 0
        self._requests -= 1
