"""torch's own attention, one request at a time, on keys and values gathered from their blocks. It runs on every device,
and is the fallback where there are no kernels."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F

from roseplay.model.attention.append import PlainAppend
from roseplay.model.attention.interface import AttentionParams, register_backend
from roseplay.model.attention.pattern import Reach
from roseplay.model.batch import PagedBatch
from roseplay.model.kv_cache import KVCache


class GatherBackend(PlainAppend):
    """Implements ``AttentionBackend`` with ``scaled_dot_product_attention``.

    Args:
        masked_queries: number of a request's queries that attend at once where a mask is needed; this bounds the
            memory of the mask and the scores.
    """

    name = "gather"

    def __init__(self, cache: KVCache, *, masked_queries: int = 256) -> None:
        super().__init__(cache)
        self.masked_queries = masked_queries

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch, params: AttentionParams
    ) -> torch.Tensor:
        out = q.new_empty((*q.shape[:2], v.shape[-1]))
        self.attend_rows(range(batch.num_rows), layer, q, k, v, batch, params, out)
        return out

    def attend_rows(
        self,
        rows: Iterable[int],
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        batch: PagedBatch,
        params: AttentionParams,
        out: torch.Tensor,
    ) -> None:
        """``attend`` for some of the batch's rows, into their tokens of ``out``."""
        bounds, seq_lens = batch.host_cu_seqlens_q.tolist(), batch.host_seq_lens.tolist()
        reach = params.reach
        for row in rows:
            begin, end, seq_len = bounds[row], bounds[row + 1], seq_lens[row]
            count, past = end - begin, seq_len - (end - begin)
            if not count:
                continue
            # Blocks that no query sees are not gathered.
            start = max(0, reach.first(past)) // self.cache.block_size
            first_key = start * self.cache.block_size
            if past or self.cache.scales:  # an answer must not depend on whether its prompt was cached
                key_scales, value_scales = self.cache.scales.get(layer, (None, None))
                place = batch, row, start, seq_len
                keys = self._gather(self.cache.keys[layer], key_scales, *place).to(k.dtype)
                if self.cache.shapes[layer].values_in_keys:
                    values = keys[..., : v.shape[-1]]
                else:
                    values = self._gather(self.cache.values[layer], value_scales, *place).to(v.dtype)
            else:
                keys, values = (x[begin:end].transpose(0, 1)[None] for x in (k, v))
            queries = q[begin:end].transpose(0, 1)[None]
            if not past and params.plain and reach.first(count - 1) <= 0:
                cached = keys[:, :, :count], values[:, :, :count]
                out[begin:end] = _sdpa(queries, *cached, None, count > 1, params.scaling)[0].transpose(0, 1)
                continue
            for at in range(0, count, self.masked_queries):
                stop = min(count, at + self.masked_queries)
                low, high = max(0, reach.first(past + at)), past + stop
                seen = slice(low - first_key, high - first_key)
                mask = None if stop - at == 1 else _mask(past + at, stop - at, low, high, reach, q.device)
                part = queries[:, :, at:stop], keys[:, :, seen], values[:, :, seen]
                if params.plain:
                    result = _sdpa(*part, mask, False, params.scaling)
                else:
                    result = _attend_with_scores(*part, mask, params)
                out[begin + at : begin + stop] = result[0].transpose(0, 1)

    def _gather(
        self, blocks: torch.Tensor, scales: torch.Tensor | None, batch: PagedBatch, row: int, start: int, seq_len: int
    ) -> torch.Tensor:
        """Returns a row's keys or values from its block ``start`` on, ``[1, kv_heads, tokens, dim]``, contiguous.

        Selects the part of each head in each block, so that one copy is enough. The indices are computed once a step.
        """
        num_blocks, heads, block_size, dim = blocks.shape
        parts = batch.memo.get((row, start, heads))
        if parts is None:
            table = batch.block_tables[row, start : -(-seq_len // block_size)]
            order = torch.arange(heads, device=blocks.device)
            parts = batch.memo[row, start, heads] = (table * heads + order[:, None]).flatten()
        numbers = blocks.view(num_blocks * heads, -1).index_select(0, parts).view(1, heads, -1, dim)
        if scales is None:
            return numbers
        of_tokens = scales.view(num_blocks * heads, -1).index_select(0, parts).view(1, heads, -1, 1)
        return numbers * of_tokens


def _mask(
    first_query: int, queries: int, first_key: int, last_key: int, reach: Reach, device: torch.device
) -> torch.Tensor:
    """Returns which keys each query sees, bool ``[queries, keys]``, for queries and keys at consecutive positions."""
    query = torch.arange(first_query, first_query + queries, device=device)[:, None]
    key = torch.arange(first_key, last_key, device=device)
    visible = key <= query
    return visible & (key >= reach.first(query)) if reach.most else visible


def _sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool, scaling: float
) -> torch.Tensor:
    """``q`` is ``[1, heads, queries, k_dim]``, ``k`` and ``v`` ``[1, kv_heads, keys, dim]``; returns ``[1, heads, queries,
    v_dim]``."""
    _, heads, queries, dim = q.shape
    kv_heads = k.shape[1]
    if queries == 1 and heads != kv_heads:  # the heads of a group read the same keys: treat them as queries
        grouped = q.reshape(1, kv_heads, heads // kv_heads, dim)
        return F.scaled_dot_product_attention(grouped, k, v, scale=scaling).reshape(1, heads, 1, -1)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=heads != kv_heads
    )


def _attend_with_scores(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, params: AttentionParams
) -> torch.Tensor:
    """Returns what ``_sdpa`` does, with softcap and sinks, which SDPA does not support; scores are in float32."""
    _, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    grouped = q.reshape(1, kv_heads, -1, dim)
    scores = (grouped @ k.transpose(2, 3)).float().view(1, heads, queries, keys) * params.scaling
    if params.softcap is not None:
        scores = torch.tanh(scores / params.softcap) * params.softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if params.sinks is not None:
        sink = params.sinks.float().view(1, heads, 1, 1).expand(-1, -1, queries, 1)
        scores = torch.cat([scores, sink], -1)
    weights = scores.softmax(-1)[..., :keys].to(v.dtype)
    return (weights.reshape(1, kv_heads, -1, keys) @ v).view(1, heads, queries, -1)


register_backend(GatherBackend.name, GatherBackend)
