"""Attention made for CPUs (it runs anywhere): what kernels of ours can read in place they do (``calls``).

For the rest, prompts on a CPU without their vectors and all of it without Numba, blocks are gathered into a small
workspace, then torch's own SDPA attends. They are gathered as ``[block, head]`` parts in the order of an index, so that
each head of each row comes out contiguous and nothing is transposed or copied a second time; the workspace is kept
between calls, because fresh memory for every gather costs more than the gather.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from roseplay.kernels.cpu.attention import calls
from roseplay.kernels.cpu.attention.in_place import Decodes, Spans, plan_decodes, plan_spans
from roseplay.kernels.cpu.attention.pieces import LayerKind, Piece, plan_pieces
from roseplay.model.attention.append import append_paged
from roseplay.model.attention.interface import register_backend
from roseplay.model.batch import PagedBatch
from roseplay.model.kv_cache import KVCache


class CPUBackend:
    """See ``AttentionBackend`` for the calls, ``in_place`` and ``pieces`` for how a batch is cut."""

    name = "cpu"

    def __init__(self, cache: KVCache, *, in_place: bool = True) -> None:
        self.cache = cache
        # Each layer's blocks as rows of one [block, head] part.
        self._keys = {layer: _parts(tensor) for layer, tensor in cache.keys.items()}
        self._values = {layer: _parts(tensor) for layer, tensor in cache.values.items()}
        self.in_place = in_place and calls.available(cache.dtype, cache.device)
        self._workspace = [torch.empty(0, dtype=cache.dtype, device=cache.device) for _ in range(2)]

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch) -> None:
        if self.in_place and batch.batched_append:
            slots = batch.memo.get("slots")
            if slots is None:
                slots = batch.memo["slots"] = batch.slot_mapping.numpy()
            calls.append_in_place(k, v, self.cache.keys[layer], self.cache.values[layer], slots)
        else:
            append_paged(self.cache, layer, k, v, batch)

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        batch: PagedBatch,
        *,
        scaling: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        out = q.new_empty((q.shape[0], q.shape[1], v.shape[-1]))
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        asked: dict[str, Any] = {"scaling": scaling, "softcap": softcap, "sinks": sinks}
        if self.in_place:
            decodes = self._decodes(batch, window)
            if decodes is not None:
                calls.attend_in_place(q, out, keys, values, decodes, **asked)
            most = calls.prompt_span(q, keys)
            if most is not None:
                spans = self._spans(batch, most)
                if spans is not None:
                    calls.attend_prompts(q, out, keys, values, spans, window=window, **asked)
                return out
        for piece in self._plan(layer, batch, window, softcap is not None or sinks is not None, q.dtype):
            shape = (piece.rows, piece.queries)
            if piece.index is None:
                keys, values = (x[piece.tokens].unflatten(0, shape).transpose(1, 2) for x in (k, v))
            else:
                keys = self._gather(0, self._keys[layer], piece.index, piece.rows, k.shape)
                values = self._gather(1, self._values[layer], piece.index, piece.rows, v.shape)
            queries = q[piece.tokens].unflatten(0, shape).transpose(1, 2)
            result = _attend(queries, keys, values, piece, scaling, softcap, sinks)
            out[piece.tokens] = result.transpose(1, 2).flatten(0, 1)
        return out

    def _plan(
        self, layer: int, batch: PagedBatch, window: int | None, explicit: bool, dtype: torch.dtype
    ) -> list[Piece]:
        kv_heads, block_size, head_dim = self.cache.keys[layer].shape[1:]
        kind = LayerKind(window, kv_heads, head_dim, block_size, explicit, dtype)
        plan = batch.memo.get(kind)
        if plan is None:
            plan = batch.memo[kind] = plan_pieces(batch, kind, with_decodes=not self.in_place)
        return plan

    def _decodes(self, batch: PagedBatch, window: int | None) -> Decodes | None:
        """The tokens that attend one by one, worked out once a step and window."""
        name = ("decodes", window)
        if name not in batch.memo:
            batch.memo[name] = plan_decodes(batch, window)
        found: Decodes | None = batch.memo[name]
        return found

    def _spans(self, batch: PagedBatch, most: int) -> Spans | None:
        """The queries of longer prompts, worked out once a step."""
        name = ("spans", most)
        if name not in batch.memo:
            batch.memo[name] = plan_spans(batch, most)
        found: Spans | None = batch.memo[name]
        return found

    def _gather(
        self, which: int, parts: torch.Tensor, index: torch.Tensor, rows: int, token_shape: torch.Size
    ) -> torch.Tensor:
        """``[rows, kv_heads, keys, dim]``, in workspace ``which`` until the next gather there."""
        numbers = index.shape[0] * parts.shape[1]
        if self._workspace[which].shape[0] < numbers:
            self._workspace[which] = parts.new_empty(numbers)
        gathered = self._workspace[which][:numbers].view(-1, parts.shape[1])
        torch.index_select(parts, 0, index, out=gathered)
        return gathered.view(rows, token_shape[1], -1, token_shape[2])


def _parts(blocks: torch.Tensor) -> torch.Tensor:
    """``[num_blocks, heads, block_size, dim]`` as ``[num_blocks * heads, block_size * dim]``."""
    return blocks.flatten(0, 1).flatten(1, 2)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    piece: Piece,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """``q`` ``[rows, heads, queries, k_dim]``, ``k`` and ``v`` ``[rows, kv_heads, keys, dim]``; like ``q`` with ``v_dim``."""
    results = []
    for span in piece.spans:
        queries = q[:, :, span.begin : span.end]
        keys, values = k[:, :, span.first : span.last], v[:, :, span.first : span.last]
        if softcap is None and sinks is None:
            results.append(_attend_span(queries, keys, values, span.mask, span.causal, scaling))
        else:
            results.append(_attend_span_explicitly(queries, keys, values, span.mask, scaling, softcap, sinks))
    return results[0] if len(results) == 1 else torch.cat(results, 2)


def _attend_span(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool, scaling: float
) -> torch.Tensor:
    rows, heads, queries, dim = q.shape
    kv_heads = k.shape[1]
    if queries == 1 and heads != kv_heads:  # the heads of a group read the same keys: they are its queries
        grouped = q.reshape(rows, kv_heads, heads // kv_heads, dim)
        out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scaling)
        return out.reshape(rows, heads, 1, -1)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=heads != kv_heads
    )


def _attend_span_explicitly(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """The same spelled out, for what SDPA cannot do; scores in float32."""
    rows, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    grouped = q.reshape(rows, kv_heads, heads // kv_heads * queries, dim)
    scores = (grouped @ k.transpose(2, 3)).float().view(rows, heads, queries, keys) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        sink = sinks.float().view(1, heads, 1, 1).expand(rows, -1, queries, 1)
        weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    weights = weights.to(v.dtype).reshape(rows, kv_heads, heads // kv_heads * queries, keys)
    return (weights @ v).view(rows, heads, queries, -1)


class GatherBackend(CPUBackend):
    """The same without the compiled kernel."""

    name = "gather"

    def __init__(self, cache: KVCache) -> None:
        super().__init__(cache, in_place=False)


register_backend(CPUBackend.name, CPUBackend)
register_backend(GatherBackend.name, GatherBackend)
