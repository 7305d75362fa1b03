"""Where top-k, top-p and min-p cut a row of logits: a threshold each, without sorting the vocabulary.

A row's logits are counted into buckets by their distance from the largest; the bucket in which the k-th token, or
the p-th part of the probability, lies is found from the counts, and only that bucket is sorted. A threshold depends
on its row alone, whatever the other rows are. Tokens that equal the threshold are all kept.

To sort one bucket is to ask how many tokens it has, for which a GPU would have to be waited for: there whole rows are
sorted, which it does well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from roseplay.config import SamplingParams
from roseplay.model.upload import to_device

BUCKETS = 1024
# Distances beyond this share the last bucket: such tokens have no probability to speak of.
FARTHEST = 40.0


def cut_threshold(logits: torch.Tensor, params: Sequence[SamplingParams], *, sort: bool = False) -> torch.Tensor | None:
    """``[rows]``: the least logit that top-k, then top-p of the rest, and min-p keep; None when nothing is cut.

    Args:
        logits: after temperature, float32 ``[rows, vocabulary]``.
        sort: whole rows, so that the device is asked for nothing.
    """
    vocabulary, device = logits.shape[-1], logits.device
    top_k = [min(p.top_k, vocabulary) if p.top_k else vocabulary for p in params]
    top_p = [p.top_p for p in params]
    searched = [row for row in range(len(params)) if top_k[row] < vocabulary or top_p[row] < 1.0]
    if not searched and not any(p.min_p > 0.0 for p in params):
        return None
    # Of min_p 0 the logarithm is minus infinity.
    threshold = logits.amax(-1) + to_device([p.min_p for p in params], torch.float32, device).log_()
    if searched:
        whole = len(searched) == len(params)
        rows = torch.arange(len(params), device=device) if whole else to_device(searched, torch.int64, device)
        search = _search_sorted if sort else _search
        part = logits if whole else logits.index_select(0, rows)
        found = search(part, [top_k[row] for row in searched], [top_p[row] for row in searched])
        threshold.index_copy_(0, rows, torch.maximum(threshold.index_select(0, rows), found))
    return threshold


@dataclass(slots=True)
class _Buckets:
    """``of_token`` ``[rows, vocabulary]``: bucket of each token, 0 the largest logits'; ``weights``: exp(-distance)."""

    logits: torch.Tensor
    of_token: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor) -> _Buckets:
        distance = logits.amax(-1, keepdim=True) - logits
        width = distance.clamp(max=FARTHEST).amax(-1, keepdim=True).clamp_(min=1e-30) / (BUCKETS - 1)
        # Clamped as integers too, for what is not a number.
        of_token = (distance / width).clamp_(max=BUCKETS - 1).long().clamp_(0, BUCKETS - 1)
        return cls(logits, of_token, distance.neg_().exp_())

    def before(self, amounts: torch.Tensor) -> torch.Tensor:
        """float64 ``[rows, BUCKETS + 1]``: the sum of tokens' ``amounts`` in the buckets before each one."""
        sums = torch.zeros((amounts.shape[0], BUCKETS + 1), dtype=torch.float64, device=amounts.device)
        sums[:, 1:].scatter_add_(1, self.of_token, amounts.double())
        return sums.cumsum_(-1)

    def threshold(self, amounts: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """``[rows, 1]``: the logit at which the sum of ``amounts``, largest logits first, reaches ``wanted`` ``[rows, 1]``."""
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
    """``[rows]``: the least logit that top-k and then top-p keep."""
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
    """The same by sorting rows: no step of it needs a number on the host."""
    vocabulary, device = logits.shape[-1], logits.device
    most = max(top_k) if min(top_p) == 1.0 else vocabulary  # with top-k alone nothing behind the largest k matters
    values = logits.topk(most, -1).values if most < vocabulary else logits.sort(-1, descending=True).values
    k = to_device(top_k, torch.int64, device)[:, None]
    least = torch.where(k < vocabulary, values.gather(1, k.clamp(max=most) - 1), float("-inf"))
    if min(top_p) < 1.0:
        p = to_device(top_p, torch.float64, device)[:, None]
        weights = (values - values[:, :1]).exp_().double() * (values >= least)
        before = weights.cumsum(-1)
        at = (before < p * weights.sum(-1, keepdim=True)).sum(-1, keepdim=True).clamp_(max=vocabulary - 1)
        least = torch.where(p < 1.0, torch.maximum(least, values.gather(1, at)), least)
    return least.flatten()
