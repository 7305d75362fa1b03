"""Drawing the next tokens of a batch from its logits.

Order of what is done to a row: repetition penalty, frequency and presence penalties, temperature, top-k, top-p (of
what top-k left), min-p. Each of the three cuts is a threshold that depends on the row alone, and noise depends on
(seed, position, token) alone, so a request draws the same tokens whatever it is batched with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from roseplay.config import SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import TokenLogprobs
from roseplay.model.cuts import cut_threshold
from roseplay.model.noise import gumbel, gumbel_of, row_keys

# Temperatures below are greedy: dividing by them would overflow before it changed a token.
GREEDY_BELOW = 1e-5
# Logits worked on at once on a CPU, so that what is made of them stays in its cache: four times faster than all.
ROWS_TIMES_VOCABULARY = 2**18


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
    """One token a row, drawn for the position after the request's last token.

    Args:
        logits: raw, ``[rows, vocabulary]``, float32; not changed.
        requests: of each row.
    """
    if any(_is_penalised(request.sampling) for request in requests):
        logits = _penalised(logits, requests)
    drawn = [row for row, request in enumerate(requests) if request.sampling.temperature >= GREEDY_BELOW]
    if len(drawn) == len(requests):
        return _draw(logits, requests).tolist()
    tokens = logits.argmax(-1)
    if drawn:
        rows = torch.tensor(drawn, device=logits.device)
        tokens[rows] = _draw(logits[rows], [requests[row] for row in drawn])
    return tokens.tolist()


def token_logprobs(
    logits: torch.Tensor, requests: Sequence[Request], tokens: Sequence[int]
) -> list[TokenLogprobs | None]:
    """Of the rows whose requests want them, from the raw ``logits`` ``[rows, vocabulary]``."""
    result: list[TokenLogprobs | None] = [None] * len(requests)
    rows = [row for row, request in enumerate(requests) if request.sampling.logprobs is not None]
    if not rows:
        return result
    logprobs = logits[torch.tensor(rows, device=logits.device)].float().log_softmax(-1)
    most = min(max(requests[row].sampling.logprobs or 0 for row in rows), logits.shape[-1])
    values, ids = (x.tolist() for x in logprobs.topk(most, -1))
    for i, row in enumerate(rows):
        wanted = requests[row].sampling.logprobs or 0
        top = list(zip(ids[i][:wanted], values[i][:wanted], strict=True))
        result[row] = TokenLogprobs(float(logprobs[i, tokens[row]]), top)
    return result


def _is_penalised(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def _penalised(logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
    """A copy with penalties: repetition over prompt and answer (CTRL's), presence and frequency over the answer."""
    logits = logits.clone()
    vocabulary = logits.shape[-1]
    for row, request in zip(logits, requests, strict=True):
        params = request.sampling
        if params.repetition_penalty != 1.0:
            seen = torch.tensor([t for t in set(request.token_ids) if t < vocabulary], device=logits.device)
            old = row[seen]
            row[seen] = torch.where(old > 0, old / params.repetition_penalty, old * params.repetition_penalty)
        if params.presence_penalty or params.frequency_penalty:
            counts = Counter(t for t in request.token_ids[request.num_prompt_tokens :] if t < vocabulary)
            if counts:
                ids = torch.tensor(list(counts), device=logits.device)
                times = torch.tensor(list(counts.values()), dtype=row.dtype, device=logits.device)
                row[ids] -= params.presence_penalty + params.frequency_penalty * times
    return logits


def _draw(logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
    """int64 ``[rows]``, a few rows at a time."""
    step = max(1, ROWS_TIMES_VOCABULARY // logits.shape[-1]) if logits.device.type == "cpu" else len(requests)
    parts = [_draw_rows(logits[i : i + step], requests[i : i + step]) for i in range(0, len(requests), step)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _draw_rows(logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
    """The largest of scaled logits plus Gumbel noise, among the tokens that the cuts leave."""
    params = [request.sampling for request in requests]
    temperatures = torch.tensor([p.temperature for p in params], dtype=torch.float32, device=logits.device)
    logits = logits / temperatures[:, None]
    keys = torch.tensor([row_keys(r.seed, r.num_tokens) for r in requests], dtype=torch.int32, device=logits.device)
    threshold = cut_threshold(logits, params)
    if threshold is None:
        return gumbel(keys, logits.shape[-1]).add_(logits).argmax(-1)
    row, token = (logits >= threshold[:, None]).nonzero(as_tuple=True)
    scores = torch.full_like(logits, float("-inf"))
    scores[row, token] = gumbel_of(keys[row], token, logits.shape[-1]).add_(logits[row, token])
    return scores.argmax(-1)
