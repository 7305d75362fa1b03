"""Attention written out in plain torch, one request at a time, in float32; other backends are tested against it."""

from __future__ import annotations

import torch

from roseplay.model.attention.append import PlainAppend
from roseplay.model.attention.interface import AttentionParams, register_backend
from roseplay.model.batch import PagedBatch


class ReferenceBackend(PlainAppend):
    """Implements ``AttentionBackend`` step by step. It reads keys and values only from the cache."""

    name = "reference"

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch, params: AttentionParams
    ) -> torch.Tensor:
        out = q.new_zeros((q.shape[0], q.shape[1], v.shape[-1]))
        # Uses the tensors, as a kernel would, not the copies on the host.
        bounds, seq_lens = batch.cu_seqlens_q.tolist(), batch.seq_lens.tolist()
        for row, (begin, end, seq_len) in enumerate(zip(bounds, bounds[1:], seq_lens, strict=False)):
            if begin == end:
                continue
            key_scales, value_scales = self.cache.scales.get(layer, (None, None))
            keys = self._gather(self.cache.keys[layer], key_scales, batch, row, seq_len)
            values = self._gather(self.cache.values[layer], value_scales, batch, row, seq_len)
            group = q.shape[1] // keys.shape[0]
            keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)

            # [heads, queries, seq_len]
            scores = q[begin:end].transpose(0, 1).float() @ keys.transpose(1, 2) * params.scaling
            if params.softcap is not None:
                scores = params.softcap * torch.tanh(scores / params.softcap)
            position = torch.arange(seq_len - (end - begin), seq_len, device=q.device)[:, None]
            other = torch.arange(seq_len, device=q.device)[None, :]
            visible = other <= position
            visible &= other >= params.reach.first(position)
            scores = scores.masked_fill(~visible, float("-inf"))
            if params.sinks is not None:
                sink = params.sinks.float().view(-1, 1, 1).expand(-1, end - begin, 1)
                weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
            else:
                weights = scores.softmax(-1)
            out[begin:end] = (weights @ values).transpose(0, 1).to(out.dtype)
        return out

    def _gather(
        self, blocks: torch.Tensor, scales: torch.Tensor | None, batch: PagedBatch, row: int, seq_len: int
    ) -> torch.Tensor:
        """``[kv_heads, seq_len, dim]`` in float32."""
        heads, block_size, dim = blocks.shape[1:]
        table = batch.block_tables[row, : -(-seq_len // block_size)]
        numbers = blocks[table].float() * (1 if scales is None else scales[table])
        return numbers.transpose(0, 1).reshape(heads, -1, dim)[:, :seq_len]


register_backend("reference", ReferenceBackend)
