"""Writing keys and values into their slots, in one write a layer or one a request."""

from __future__ import annotations

from itertools import pairwise

import torch

from roseplay.model.batch import PagedBatch
from roseplay.model.kv_cache import KVCache


def append_paged(cache: KVCache, layer: int, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch) -> None:
    """Write ``k`` ``[tokens, kv_heads, k_dim]`` and ``v`` into ``batch.slot_mapping``'s slots of ``layer``.

    One write for the whole batch, or (``batch.batched_append`` off) one for each of its rows, as engines did before
    the write was batched (roseinfer 038). Both leave the same cache.

    What is not a finite number becomes 0: masked as it may be, it would spoil whoever reads past the end of its own
    tokens into what this request leaves behind (0 x NaN is NaN).
    """
    k, v = (x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) for x in (k, v))
    blocks, offsets = _places(cache, batch)
    keys, values = cache.keys[layer], cache.values[layer]
    if batch.batched_append:
        keys[blocks, :, offsets] = k
        values[blocks, :, offsets] = v
        return
    for begin, end in pairwise(batch.host_cu_seqlens_q.tolist()):
        keys[blocks[begin:end], :, offsets[begin:end]] = k[begin:end]
        values[blocks[begin:end], :, offsets[begin:end]] = v[begin:end]


def _places(cache: KVCache, batch: PagedBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Block and offset of each token; the same for all layers, so worked out once a step."""
    places = batch.memo.get("places")
    if places is None:
        places = batch.memo["places"] = (batch.slot_mapping // cache.block_size, batch.slot_mapping % cache.block_size)
    return places
