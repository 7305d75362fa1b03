"""The logit thresholds of top-k, top-p and min-p, mostly without sorting the vocabulary.

With a small top-k, only the largest k logits are sorted. Otherwise, on a CPU, a row's logits are counted in buckets by
their distance from the largest: the counts tell which bucket has the k-th token, or in which one the cumulative
probability reaches p, and only that bucket is sorted. This requires its number of tokens on the host, which would have to
wait for a GPU, so there whole rows are sorted. A threshold depends only on its own row. All tokens equal to the threshold
are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from roseplay.config import SamplingParams
from roseplay.model.upload import to_device

BUCKETS = 1024
# Larger distances share the last bucket: the probability of these tokens is negligible.
FARTHEST = 40.0
# Up to this share of the vocabulary, the largest k logits are found and sorted faster than a row is counted.
SORTED_SHARE = 1 / 8


def cut_threshold(logits: torch.Tensor, params: Sequence[SamplingParams], *, sort: bool = False) -> torch.Tensor | None:
    """Returns the lowest logit kept by top-k, then top-p of what is left, and min-p, ``[rows]``; None if all are kept.

    Args:
        logits: logits after temperature, float32 ``[rows, vocabulary]``.
        sort: whether to sort rows with a large top-k or none, so that the host does not wait for the device.
    """
    vocabulary, device = logits.shape[-1], logits.device
    top_k = [min(p.top_k, vocabulary) if p.top_k else vocabulary for p in params]
    top_p = [p.top_p for p in params]
    searched = [row for row in range(len(params)) if top_k[row] < vocabulary or top_p[row] < 1.0]
    if not searched and not any(p.min_p > 0.0 for p in params):
        return None
    # log(0) is -inf, which keeps all tokens.
    threshold = logits.amax(-1) + to_device([p.min_p for p in params], torch.float32, device).log_()
    few = [row for row in searched if top_k[row] <= vocabulary * SORTED_SHARE]
    others = [row for row in searched if top_k[row] > vocabulary * SORTED_SHARE]
    for part, search in ((few, _search_sorted), (others, _search_sorted if sort else _search)):
        if not part:
            continue
        whole = len(part) == len(params)
        rows = torch.arange(len(params), device=device) if whole else to_device(part, torch.int64, device)
        chosen = logits if whole else logits.index_select(0, rows)
        cuts = search(chosen, [top_k[row] for row in part], [top_p[row] for row in part])
        threshold.index_copy_(0, rows, torch.maximum(threshold.index_select(0, rows), cuts))
    return threshold


@dataclass(slots=True)
class _Buckets:
    """``of_token`` ``[rows, vocabulary]``: the bucket of each token, 0 for the largest logits; ``weights``: exp(-distance)."""

    logits: torch.Tensor
    of_token: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor) -> _Buckets:
        distance = logits.amax(-1, keepdim=True) - logits
        width = distance.clamp(max=FARTHEST).amax(-1, keepdim=True).clamp_(min=1e-30) / (BUCKETS - 1)
        # Clamped again as integers, because NaN converts to any integer.
        of_token = (distance / width).clamp_(max=BUCKETS - 1).long().clamp_(0, BUCKETS - 1)
        return cls(logits, of_token, distance.neg_().exp_())

    def before(self, amounts: torch.Tensor) -> torch.Tensor:
        """Returns the sum of ``amounts`` over all buckets before each bucket, float64 ``[rows, BUCKETS + 1]``."""
        sums = torch.zeros((amounts.shape[0], BUCKETS + 1), dtype=torch.float64, device=amounts.device)
        sums[:, 1:].scatter_add_(1, self.of_token, amounts.double())
        return sums.cumsum_(-1)

    def threshold(self, amounts: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Returns the logit at which the sum of ``amounts``, in descending order of logits, reaches ``wanted``."""
        before = self.before(amounts)
        bucket = ((before < wanted).sum(-1, keepdim=True) - 1).clamp_(0, BUCKETS - 1)
        row, token = (self.of_token == bucket).nonzero(as_tuple=True)
        counts = torch.bincount(row, minlength=before.shape[0])
        place = torch.arange(row.shape[0], device=row.device) - (counts.cumsum(0) - counts)[row]
        values = self.logits.new_full((before.shape[0], int(counts.max())), float("-inf"))
        inside = torch.zeros_like(values, dtype=torch.float64)
        values[row, place] = self.logits[row, token]
        inside[row, place] = amounts[row, token].double()
        values, order = values.sort(-1, descending=True)
        reached = before.gather(1, bucket) + inside.gather(1, order).cumsum(-1)
        at = (reached < wanted).sum(-1, keepdim=True)
        return values.gather(1, torch.minimum(at, counts[:, None] - 1))


def _search(logits: torch.Tensor, top_k: list[int], top_p: list[float]) -> torch.Tensor:
    """Returns the least logit that top-k and then top-p keep, ``[rows]``."""
    vocabulary, device = logits.shape[-1], logits.device
    buckets = _Buckets.of(logits)
    least = logits.new_full((logits.shape[0], 1), float("-inf"))
    if min(top_k) < vocabulary:
        k = to_device(top_k, torch.float64, device)[:, None]
        by_k = buckets.threshold(torch.ones_like(logits), k)
        least = torch.where(k < vocabulary, by_k, least)
    if min(top_p) < 1.0:
        p = to_device(top_p, torch.float64, device)[:, None]
        weights = buckets.weights * (logits >= least)
        by_p = buckets.threshold(weights, p * weights.sum(-1, keepdim=True, dtype=torch.float64))
        least = torch.where(p < 1.0, torch.maximum(least, by_p), least)
    return least.flatten()


def _search_sorted(logits: torch.Tensor, top_k: list[int], top_p: list[float]) -> torch.Tensor:
    """Returns the same as ``_search`` by sorting the largest ``max(top_k)`` logits, which needs no value on the host."""
    vocabulary, device = logits.shape[-1], logits.device
    most = max(top_k)
    values = logits.topk(most, -1).values if most < vocabulary else logits.sort(-1, descending=True).values
    k = to_device(top_k, torch.int64, device)[:, None]
    least = torch.where(k < vocabulary, values.gather(1, k - 1), float("-inf"))
    if min(top_p) < 1.0:
        p = to_device(top_p, torch.float64, device)[:, None]
        before = ((values - values[:, :1]).exp_().double() * (values > least)).cumsum_(-1)
        # Equals of the least may not be among the largest k.
        equals = (logits == least).sum(-1, keepdim=True) * (least - values[:, :1]).exp_().double()
        wanted = p * (before[:, -1:] + equals)
        at = (before < wanted).sum(-1, keepdim=True).clamp_(max=most - 1)
        least = torch.where(p < 1.0, torch.maximum(least, values.gather(1, at)), least)
    return least.flatten()
