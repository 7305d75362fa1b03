"""Writing keys and values to their slots, in one write per layer or one per request."""

from __future__ import annotations

from itertools import pairwise

import torch

from roseplay.model.batch import PagedBatch
from roseplay.model.kv_cache import KVCache


class PlainAppend:
    """Implements ``append`` of ``AttentionBackend`` in plain torch."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch) -> None:
        """Write ``k`` ``[tokens, kv_heads, k_dim]`` and ``v`` ``[tokens, kv_heads, v_dim]`` to the slots of ``layer``.

        One write for the whole batch, or (``batch.batched_append`` off) one for each of its rows, as engines did before
        the write was batched (roseinfer 038). Both leave the same cache.

        Numbers that are not finite stay so (in int8 the token's whole head becomes NaN): no backend may multiply what lies past a request's last token, not even by 0.
        """
        blocks, offsets = _slots(self.cache, batch)
        key_scales, value_scales = self.cache.scales.get(layer, (None, None))
        written = _stored(k, self.cache.keys[layer], key_scales)
        if not self.cache.shapes[layer].values_in_keys:
            written += _stored(v, self.cache.values[layer], value_scales)
        for new, cached in written:
            if batch.batched_append:
                cached[blocks, :, offsets] = new
                continue
            for begin, end in pairwise(batch.host_cu_seqlens_q.tolist()):
                cached[blocks[begin:end], :, offsets[begin:end]] = new[begin:end]


def _stored(
    new: torch.Tensor, cached: torch.Tensor, scales: torch.Tensor | None
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns what is written, and where to: keys or values, or their codes in int8 and the scales ``[tokens, heads, 1]``."""
    if scales is None:
        return [(new, cached)]
    scale = new.float().abs().amax(-1, keepdim=True) / 127
    codes = new / scale.clamp_min(torch.finfo(torch.float32).tiny)
    return [(codes.round_().to(torch.int8), cached), (scale, scales)]


def _slots(cache: KVCache, batch: PagedBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Block and offset of each token's slot; the same for all layers, so computed once a step."""
    slots = batch.memo.get("slots")
    if slots is None:
        slots = batch.memo["slots"] = (batch.slot_mapping // cache.block_size, batch.slot_mapping % cache.block_size)
    return slots
