"""Log-probabilities of prompt tokens. Each is predicted by the token before it, whose logits the step computes too."""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
import torch

from roseplay.core.step import Step, TokenLogprobs
from roseplay.model.batch import Ints
from roseplay.model.upload import Download, to_device


def predicting_rows(step: Step, cu_seqlens_q: Ints) -> Ints:
    """Returns the indices of the packed tokens whose logits predict the positions in ``step.prompt_logprobs``, in
    order.

    Raises ``ValueError`` if an entry does not compute these tokens.
    """
    rows, row = [], 0
    for index, entry in enumerate(step.entries):
        positions = step.prompt_logprobs.get(index)
        if positions is not None:
            first, last = positions[0] - 1 - entry.start, positions[-1] - 1 - entry.start
            if first < 0 or last >= entry.num_tokens or positions[-1] >= entry.request.num_prompt_tokens:
                raise ValueError(f"{entry.request}: log-probabilities of tokens that it does not predict: {positions}")
            rows.append(np.arange(first, last + 1) + cu_seqlens_q[row])
        row += entry.num_tokens > 0
    return np.concatenate(rows)


class PromptLogprobs:
    """Log-probabilities of a step's prompt tokens and of the likeliest ones, copied from the device asynchronously.

    Args:
        logits: raw logits ``[tokens, vocabulary]`` of the tokens from ``predicting_rows``.
        rows: most rows whose float32 log-probabilities are held in memory at the same time.
    """

    def __init__(self, step: Step, logits: torch.Tensor, rows: int = 256) -> None:
        self._positions = step.prompt_logprobs
        requests = {index: step.entries[index].request for index in self._positions}
        self._top = {index: request.sampling.prompt_logprobs or 0 for index, request in requests.items()}
        most = min(max(self._top.values()), logits.shape[-1])
        of_prompts = (requests[i].token_ids[at[0] : at[-1] + 1] for i, at in self._positions.items())
        tokens = to_device(list(chain.from_iterable(of_prompts)), torch.int64, logits.device)
        parts = [
            _logprobs(logits[row : row + rows], tokens[row : row + rows], most)
            for row in range(0, logits.shape[0], rows)
        ]
        self._download = Download(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def read(self) -> dict[int, list[TokenLogprobs]]:
        """Wait for the device; returns the log-probabilities of each entry's positions. NaN where logits are unusable."""
        chosen, values, ids = (tensor.tolist() for tensor in self._download.read())
        result: dict[int, list[TokenLogprobs]] = {}
        row = 0
        for index, positions in self._positions.items():
            top, end = self._top[index], row + len(positions)
            result[index] = [
                TokenLogprobs(chosen[i], list(zip(ids[i][:top], values[i][:top], strict=True))) for i in range(row, end)
            ]
            row = end
        return result


def has_nan(logprobs: list[TokenLogprobs]) -> bool:
    """Returns whether some of the logits were NaN or infinite."""
    return any(math.isnan(token.logprob) for token in logprobs)


def _logprobs(logits: torch.Tensor, tokens: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the log-probability of each row's token ``[rows]``, and the ``most`` largest with their token ids."""
    vocabulary = logits.shape[-1]
    logprobs = logits.log_softmax(-1, dtype=torch.float32)
    chosen = logprobs.gather(1, tokens.clamp(max=vocabulary - 1)[:, None])[:, 0]
    values, ids = logprobs.topk(most, -1)
    has_no_logit = tokens >= vocabulary  # a model may accept more token ids than it predicts
    return chosen.masked_fill_(has_no_logit & chosen.isnan().logical_not_(), -math.inf), values, ids
