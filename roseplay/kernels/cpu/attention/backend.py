"""Attention for CPUs: compiled kernels that read blocks in place (``calls``), with gathered blocks as the fallback.

The fallback computes prompts on a CPU without 512-bit vectors, and everything without Numba or in float16.
"""

from __future__ import annotations

import torch

from roseplay.kernels.cpu.attention import calls
from roseplay.kernels.cpu.attention.plan import Plan
from roseplay.model.attention.gather import GatherBackend
from roseplay.model.attention.interface import AttentionParams, register_backend
from roseplay.model.batch import PagedBatch
from roseplay.model.kv_cache import KVCache


class CPUBackend(GatherBackend):
    """See ``AttentionBackend`` for the calls.

    Attributes:
        in_place: whether blocks are read in place, by calls that can be recorded (``recorded_steps``).
    """

    name = "cpu"

    def __init__(self, cache: KVCache) -> None:
        super().__init__(cache)
        self.in_place = calls.available(cache.dtype, cache.device)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch) -> None:
        if not (self.in_place and batch.batched_append):
            super().append(layer, k, v, batch)
            return
        key_scales, value_scales = self.cache.scales.get(layer, (None, None))
        calls.append_in_place(k, self.cache.keys[layer], batch.slot_mapping, key_scales)
        if not self.cache.shapes[layer].values_in_keys:
            calls.append_in_place(v, self.cache.values[layer], batch.slot_mapping, value_scales)

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch, params: AttentionParams
    ) -> torch.Tensor:
        if not self.in_place:
            return super().attend(layer, q, k, v, batch, params)
        out = q.new_empty((*q.shape[:2], v.shape[-1]))
        keys, values, scales = self.cache.keys[layer], self.cache.values[layer], self.cache.scales.get(layer)
        plan = Plan.of(batch)
        # One head of latents has so many query heads that decodes are matrix products as well.
        every = self.cache.shapes[layer].values_in_keys
        decodes = None if every else plan.decodes(params.reach)
        if decodes is not None:
            calls.attend_in_place(q, out, keys, values, decodes, params, scales)
        if every or plan.has_prompts:
            most = calls.prompt_span(q, keys)
            if most is None:
                self.attend_rows(plan.prompt_rows(every=every), layer, q, k, v, batch, params, out)
            else:
                calls.attend_prompts(q, out, keys, values, plan.spans(most, every=every), params, scales)
        return out


register_backend(CPUBackend.name, CPUBackend, suits=lambda device: device.type == "cpu")
