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
from roseplay.model.noise import gumbel, row_keys

# Temperatures below are greedy: dividing by them would overflow before it changed a token.
GREEDY_BELOW = 1e-5
# Likeliest tokens that a top-p row looks at before it sorts its whole vocabulary.
TOP_P_CANDIDATES = 256


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
    """int64 ``[rows]``: the largest of scaled logits plus Gumbel noise, among the tokens that the cuts leave."""
    params = [request.sampling for request in requests]
    temperatures = torch.tensor([p.temperature for p in params], dtype=torch.float32, device=logits.device)
    logits = logits / temperatures[:, None]
    keys = torch.tensor([row_keys(r.seed, r.num_tokens) for r in requests], dtype=torch.int32, device=logits.device)
    scores = gumbel(keys, logits.shape[-1]).add_(logits)
    threshold = _threshold(logits, params)
    if threshold is not None:
        scores.masked_fill_(logits < threshold[:, None], float("-inf"))
    return scores.argmax(-1)


def _threshold(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor | None:
    """``[rows]``: the least logit that top-k, top-p and min-p keep; None when no row cuts anything. Equals are kept."""
    vocabulary = logits.shape[-1]
    top_k = [min(p.top_k, vocabulary) if p.top_k else vocabulary for p in params]
    sorting = [row for row, p in enumerate(params) if top_k[row] < vocabulary or p.top_p < 1.0]
    if not sorting and not any(p.min_p > 0.0 for p in params):
        return None
    threshold = torch.full((len(params),), float("-inf"), device=logits.device)
    if any(p.min_p > 0.0 for p in params):
        least = torch.tensor([p.min_p for p in params], device=logits.device).log_()  # of 0: minus infinity
        threshold = logits.amax(-1) + least
    if sorting:
        rows = torch.tensor(sorting, device=logits.device)
        cut = _sorted_threshold(logits[rows], [top_k[row] for row in sorting], [params[row].top_p for row in sorting])
        threshold[rows] = torch.maximum(threshold[rows], cut)
    return threshold


def _sorted_threshold(logits: torch.Tensor, top_k: list[int], top_p: list[float]) -> torch.Tensor:
    """``[rows]``: the least logit that top-k and then top-p keep."""
    vocabulary = logits.shape[-1]
    cut_by_k = [k for k in top_k if k < vocabulary]
    candidates = min(max([TOP_P_CANDIDATES, *cut_by_k]), vocabulary)
    values = logits.topk(candidates, -1).values
    least, done = _cut(logits, values, top_k, top_p)
    if not done.all():  # a flat distribution: what top-p keeps is more than the candidates
        rows = torch.nonzero(~done).flatten()
        chosen = rows.tolist()
        values = logits[rows].sort(-1, descending=True).values
        least[rows] = _cut(logits[rows], values, [top_k[i] for i in chosen], [top_p[i] for i in chosen])[0]
    return least


def _cut(
    logits: torch.Tensor, values: torch.Tensor, top_k: list[int], top_p: list[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Thresholds of the rows from their largest ``values``, sorted; and which rows those values were enough for."""
    vocabulary, known = logits.shape[-1], values.shape[-1]
    k = torch.tensor(top_k, device=logits.device)[:, None]
    p = torch.tensor(top_p, dtype=torch.float64, device=logits.device)[:, None]
    largest = values[:, :1]
    by_k = torch.where(k < vocabulary, values.gather(1, (k - 1).clamp(max=known - 1)), float("-inf"))
    if min(top_p) >= 1.0:
        return by_k.flatten(), torch.ones_like(by_k, dtype=torch.bool).flatten()
    # Sums in float64, and the total over the whole row: neither depends on how many values are known.
    total = ((logits - largest).exp() * (logits >= by_k)).sum(-1, keepdim=True, dtype=torch.float64)
    weights = (values - largest).exp().double()
    before = weights.cumsum(-1) - weights
    needed = (before < p * total).sum(-1, keepdim=True)  # how many tokens it takes to reach p
    by_p = torch.where(p < 1.0, values.gather(1, needed - 1), float("-inf"))
    done = (p >= 1.0) | (needed < known) | (known == vocabulary) | (values[:, -1:] < by_k)
    return torch.maximum(by_k, by_p).flatten(), done.flatten()
