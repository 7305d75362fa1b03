"""Draws the next tokens of a batch from its logits.

Operations on a row, in order: those of ``restrictions.py``, repetition penalty, frequency and presence penalties, temperature, top-k, top-p (of the
tokens that top-k keeps), min-p. Top-k, top-p and min-p are thresholds that depend only on the row, and noise depends only
on (seed, position, token), so a request draws the same tokens whatever it is batched with.

A row from which nothing can be drawn (it has a NaN, +inf, or only -inf) gets ``NO_TOKEN``.

On a GPU nothing here waits for the device: drawn tokens stay there for the next step, and the host reads them later. On a
CPU, noise is computed only for tokens that the thresholds keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

import numpy as np
import torch

from roseplay.config import SamplingParams
from roseplay.core.request import PLACEHOLDER
from roseplay.core.step import TokenLogprobs
from roseplay.model.batch import Drawn
from roseplay.model.drawing import Drawing
from roseplay.model.gumbel import gumbel, gumbel_of, row_keys
from roseplay.model.restrictions import is_restricted, restricted
from roseplay.model.top_k_top_p import cut_threshold
from roseplay.model.upload import Download, pack_ints, to_device

# Lower temperatures are treated as greedy: dividing by them would overflow.
GREEDY_BELOW = 1e-5
# Logits processed at once on a CPU, so that temporaries stay in its cache: four times as fast as all rows at once.
ROWS_TIMES_VOCABULARY = 2**18
NO_TOKEN = -1


class SamplingKernels(Protocol):
    """Faster implementations of parts of ``draw``."""

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """As ``likeliest``."""

    def sample(self, logits: torch.Tensor, requests: Sequence[Drawing]) -> torch.Tensor | None:
        """Draw without penalties, see ``draw``; returns None if it does not support these logits."""


def draw(
    logits: torch.Tensor,
    requests: Sequence[Drawing],
    drawn: Drawn | None = None,
    *,
    wait: bool | None = None,
    kernels: SamplingKernels | None = None,
    argmax: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draw one token per row, for the position after its request's last token (or draft's); returns int64 ``[rows]``.

    A row from which nothing can be drawn gets ``NO_TOKEN``.

    Args:
        logits: raw logits ``[rows, vocabulary]``; not changed.
        requests: the request of each row.
        drawn: tokens drawn by the previous step, for requests that end with a placeholder.
        wait: whether the host may wait for the device; by default only on a CPU, where that costs nothing.
        kernels: faster implementations, if any.
        argmax: the likeliest token of each row of ``logits``, if known; may be overwritten, and returned.
    """
    params = [request.sampling for request in requests]
    if any(map(is_restricted, requests)):
        logits, argmax = restricted(logits, requests, drawn), None
    if any(map(_is_penalised, params)):
        logits, argmax = _penalised(logits, requests, drawn), None
    sampled = [row for row, wanted in enumerate(params) if wanted.temperature >= GREEDY_BELOW]
    if sampled and kernels is not None and (tokens := kernels.sample(logits, requests)) is not None:
        return tokens
    if len(sampled) == len(requests):
        return _draw(logits, requests, wait)
    tokens = argmax if argmax is not None else (likeliest if kernels is None else kernels.argmax)(logits)
    if sampled:
        rows = to_device(sampled, torch.int64, logits.device)
        tokens.index_copy_(0, rows, _draw(logits.index_select(0, rows), [requests[row] for row in sampled], wait))
    return tokens


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """Returns each row's token with the largest logit, the first of equal ones, or ``NO_TOKEN``: int64 ``[rows]``."""
    tokens = logits.argmax(-1)  # the index of a NaN, if there is one
    return _drop_unusable(tokens, logits.gather(1, tokens[:, None])[:, 0])


def _drop_unusable(tokens: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """Replace tokens by ``NO_TOKEN`` in rows whose largest logit is not finite."""
    return tokens.masked_fill_(largest.isfinite().logical_not_(), NO_TOKEN)


class Logprobs:
    """Log-probabilities of drawn tokens and of the likeliest ones, copied from the device asynchronously.

    Args:
        logits: raw logits ``[rows, vocabulary]``.
        tokens: the drawn tokens, int64 ``[rows]``; ``NO_TOKEN`` where nothing can be drawn.
    """

    def __init__(self, logits: torch.Tensor, requests: Sequence[Drawing], tokens: torch.Tensor) -> None:
        self._wanted = [request.sampling.logprobs for request in requests]
        self._named = [request.sampling.logprob_token_ids for request in requests]
        self._rows = [row for row, wanted in enumerate(self._wanted) if wanted is not None]
        if not self._rows:
            return
        rows = to_device(self._rows, torch.int64, logits.device)
        logprobs = logits.index_select(0, rows).float().log_softmax(-1)
        most = min(max(self._wanted[row] or 0 for row in self._rows), logits.shape[-1])
        values, ids = logprobs.topk(most, -1)
        chosen = logprobs.gather(1, tokens.index_select(0, rows).clamp_(min=0)[:, None]).flatten()
        named = [i * logits.shape[-1] + token for i, row in enumerate(self._rows) for token in self._named[row]]
        of_named = logprobs.view(-1).index_select(0, to_device(named, torch.int64, logits.device))
        self._download = Download(chosen, values, ids, of_named)

    def read(self) -> list[TokenLogprobs | None]:
        """Wait for the log-probabilities and return them; None for rows whose requests did not ask for any."""
        result: list[TokenLogprobs | None] = [None] * len(self._wanted)
        if self._rows:
            chosen, values, ids, named = (tensor.tolist() for tensor in self._download.read())
            of_named = iter(named)
            for i, row in enumerate(self._rows):
                wanted = self._wanted[row] or 0
                top = zip(ids[i][:wanted], values[i][:wanted], strict=True)
                result[row] = TokenLogprobs(chosen[i], [(t, next(of_named)) for t in self._named[row]] or list(top))
        return result


def _is_penalised(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def _penalised(logits: torch.Tensor, requests: Sequence[Drawing], drawn: Drawn | None = None) -> torch.Tensor:
    """Returns a copy with penalties: repetition (as in CTRL) for prompt and answer, the others for the answer only.

    Only the logits of tokens that occur are read and written; one that occurs twice is written twice, the same value.
    """
    device, vocabulary = logits.device, logits.shape[-1]
    logits = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    place, in_answer = _occurring_tokens(requests, vocabulary, device, drawn)
    repetition, presence, frequency = to_device(
        [
            [getattr(r.sampling, f"{name}_penalty") for r in requests]
            for name in ("repetition", "presence", "frequency")
        ],
        torch.float32,
        device,
    ).index_select(1, place // vocabulary)
    flat = logits.view(-1)
    old = flat.gather(0, place)
    new = torch.where(old > 0, old / repetition, old * repetition)
    counts = torch.zeros_like(flat).scatter_add_(0, place, in_answer).gather(0, place)
    new -= torch.where(counts > 0, presence + frequency * counts, 0.0)
    flat.scatter_(0, place, new)
    return logits


def _occurring_tokens(
    requests: Sequence[Drawing], vocabulary: int, device: torch.device, drawn: Drawn | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the place of each token of penalised requests in the flat logits, int64, and whether it is in an answer,
    float32: both ``[tokens]``.

    Tokens without a logit are left out; placeholders are replaced by the tokens in ``drawn``.
    """
    chosen = [(row, request) for row, request in enumerate(requests) if _is_penalised(request.sampling)]
    lengths = [request.num_tokens for _, request in chosen]
    tokens = np.fromiter(chain.from_iterable(request.token_ids for _, request in chosen), np.int64, sum(lengths))
    rows = np.repeat([row for row, _ in chosen], lengths)
    in_answer = np.concatenate([np.arange(n) >= r.num_prompt_tokens for n, (_, r) in zip(lengths, chosen, strict=True)])
    has_logit = (tokens >= 0) & (tokens < vocabulary)
    places = (rows * vocabulary + tokens)[has_logit]
    late = [] if drawn is None else [(row, r) for row, r in chosen if r.token_ids[-1] == PLACEHOLDER]
    sources = [] if drawn is None else [drawn.row_of[request.request_id] for _, request in late]
    late_rows = [row for row, _ in late]
    arrays = [np.asarray(array, np.int64) for array in (places, in_answer[has_logit], late_rows, sources)]
    packed = pack_ints(arrays, device).to(device, non_blocking=True)
    place, answers, late_at, drawn_at = packed.split([array.size for array in arrays])
    if drawn is not None and sources:
        late_places = late_at * vocabulary + drawn.select(drawn_at)
        place, answers = torch.cat([place, late_places]), torch.cat([answers, torch.ones_like(late_places)])
    return place, answers.float()


def _draw(logits: torch.Tensor, requests: Sequence[Drawing], wait: bool | None) -> torch.Tensor:
    """Draw a token for each row, int64 ``[rows]``; on a CPU, a few rows at a time."""
    on_cpu = logits.device.type == "cpu"
    wait = on_cpu if wait is None else wait
    step = max(1, ROWS_TIMES_VOCABULARY // logits.shape[-1]) if on_cpu else len(requests)
    parts = [_draw_rows(logits[i : i + step], requests[i : i + step], wait) for i in range(0, len(requests), step)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _draw_rows(logits: torch.Tensor, requests: Sequence[Drawing], wait: bool) -> torch.Tensor:
    """Draw tokens by the Gumbel-max trick among those that the thresholds keep; ``NO_TOKEN`` for unusable rows."""
    params = [request.sampling for request in requests]
    logits = logits.float() / to_device([p.temperature for p in params], torch.float32, logits.device)[:, None]
    return _drop_unusable(_draw_scaled(logits, requests, params, wait), logits.amax(-1))


def _draw_scaled(
    logits: torch.Tensor, requests: Sequence[Drawing], params: Sequence[SamplingParams], wait: bool
) -> torch.Tensor:
    keys = to_device([row_keys(r.seed, r.num_tokens) for r in requests], torch.int32, logits.device)
    threshold = cut_threshold(logits, params, sort=not wait)
    if threshold is None:
        return gumbel(keys, logits.shape[-1]).add_(logits).argmax(-1)
    if not wait:
        scores = gumbel(keys, logits.shape[-1]).add_(logits)
        return scores.masked_fill_(logits < threshold[:, None], float("-inf")).argmax(-1)
    row, token = (logits >= threshold[:, None]).nonzero(as_tuple=True)
    scores = torch.full_like(logits, float("-inf"))
    scores[row, token] = gumbel_of(keys[row], token, logits.shape[-1]).add_(logits[row, token])
    return scores.argmax(-1)
