"""Attention for CUDA devices, in Triton; on a CPU it runs in Triton's interpreter (``TRITON_INTERPRET=1``), for tests.

Nothing here asks the device for anything, and what is launched depends on shapes alone, so that a step can be captured
in a CUDA graph and replayed with other numbers in the batch's tensors: for a graph whose batch was captured with one
token a row, with batches of at most one token a row; for any other, with any batch that fits its tensors.
"""

from __future__ import annotations

import importlib.util
import math
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from roseplay.model.attention.interface import register_backend
from roseplay.model.attention.triton_tiles import choose_splits, choose_tiles, next_power_of_2
from roseplay.model.batch import PagedBatch
from roseplay.model.kv_cache import KVCache

# The interpreter has no multiprocessors; these many make it split contexts as a GPU does.
_INTERPRETED_PROCESSORS = 4
_INTERPRETED_SHARED_MEMORY = 227 * 1024
# Numbers of one layer's keys that a program of append moves: 16 bytes for each of its 128 threads.
_APPEND_NUMBERS = 1024
# Numbers of the parts that a program of the joining kernel holds.
_JOIN_NUMBERS = 8192


def available() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


class TritonBackend:
    """See ``AttentionBackend`` for the calls.

    Tokens behind the last row (padding of a bucket) attend to nothing and come out as zeros; their keys and values go to
    the slots that the batch names, -1 meaning block 0.

    Raises ``ValueError`` without Triton, or without a CUDA device unless Triton interprets.
    """

    name = "triton"

    def __init__(self, cache: KVCache) -> None:
        if not available():
            raise ValueError("attention='triton' needs Triton: install roseplay[triton]")
        import triton

        self._interpreted = bool(triton.knobs.runtime.interpret)
        if cache.device.type != "cuda" and not self._interpreted:
            raise ValueError(f"attention='triton' needs a CUDA device, the model is on {cache.device}")
        self.cache = cache

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch) -> None:
        if batch.batched_append:
            self._append(layer, k, v, batch.slot_mapping)
            return
        for begin, end in pairwise(batch.host_cu_seqlens_q.tolist()):
            self._append(layer, k[begin:end], v[begin:end], batch.slot_mapping[begin:end])

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
        from roseplay.model.attention.triton_kernels import attend_kernel, join_kernel

        keys, values = self.cache.keys[layer], self.cache.values[layer]
        num_tokens, num_heads = q.shape[:2]
        num_rows = batch.seq_lens.shape[0]
        kv_heads, block_size, k_dim = keys.shape[1:]
        v_dim = values.shape[-1]
        group = num_heads // kv_heads
        decode_only = self._decode_only(batch)
        tiles = choose_tiles(
            decode_only=decode_only,
            num_tokens=num_tokens,
            num_rows=num_rows,
            group=group,
            k_dim=k_dim,
            v_dim=v_dim,
            itemsize=keys.itemsize,
            shared_memory=self._shared_memory,
        )
        query_tiles = num_rows if decode_only else -(-num_tokens // tiles.block_q) + num_rows
        head_parts = kv_heads * -(-group // tiles.heads)
        most_keys = batch.block_tables.shape[1] * block_size
        splits = choose_splits(
            decode_only=decode_only,
            programs=query_tiles * head_parts,
            most_keys=min(most_keys, window + tiles.block_q) if window else most_keys,
            block_n=tiles.block_n,
            num_processors=self._num_processors,
        )
        out = q.new_empty((num_tokens, num_heads, v_dim))
        if splits > 1:
            parts = out.new_empty((splits, *out.shape), dtype=torch.float32)
            lse = out.new_empty((splits, num_tokens, num_heads), dtype=torch.float32)
        else:
            parts = lse = out
        log2_e = math.log2(math.e)
        q = q.to(keys.dtype)
        attend_kernel[query_tiles, head_parts, splits](
            parts, lse, q, keys, values, batch.block_tables, batch.cu_seqlens_q, batch.seq_lens,
            q if sinks is None else sinks,
            num_tokens, num_rows, batch.block_tables.stride(0),
            2 * log2_e * scaling / softcap if softcap else log2_e * scaling,
            log2_e * softcap if softcap else 0.0,
            q.stride(0), q.stride(1), keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
            NUM_HEADS=num_heads, GROUP=group, HEADS=tiles.heads,
            BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, BLOCK_SIZE=block_size,
            K_DIM=k_dim, V_DIM=v_dim, K_PAD=_pad(k_dim), V_PAD=_pad(v_dim),
            SPLITS=splits, DECODE=decode_only,
            WINDOW=window or 0, SOFTCAP=bool(softcap), SINKS=sinks is not None,
            WIDEN=self._interpreted, PRECISION="tf32x3" if keys.dtype == torch.float32 else "tf32",
            num_warps=tiles.num_warps, num_stages=tiles.num_stages,
        )  # fmt: skip
        if splits > 1:
            block_v = min(_pad(v_dim), _JOIN_NUMBERS // splits)
            join_kernel[num_tokens, num_heads, -(-v_dim // block_v)](
                out, parts, lse, num_tokens, NUM_HEADS=num_heads, V_DIM=v_dim, BLOCK_V=block_v, SPLITS=splits
            )
        return out

    def _append(self, layer: int, k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        from roseplay.model.attention.triton_append import append_kernel

        keys, values = self.cache.keys[layer], self.cache.values[layer]
        num_tokens, num_heads, k_dim = k.shape
        v_dim = v.shape[2]
        block_h = min(next_power_of_2(num_heads), max(1, _APPEND_NUMBERS // _pad(max(k_dim, v_dim))))
        append_kernel[num_tokens, -(-num_heads // block_h)](
            k, v, keys, values, slot_mapping,
            k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
            NUM_HEADS=num_heads, BLOCK_H=block_h, BLOCK_SIZE=self.cache.block_size,
            K_DIM=k_dim, V_DIM=v_dim, K_PAD=_pad(k_dim), V_PAD=_pad(v_dim),
        )  # fmt: skip

    def _decode_only(self, batch: PagedBatch) -> bool:
        """Whether token r is the only one of row r, for all tokens; padding rows at the end have none."""
        name = "triton decode only"
        if name not in batch.memo:
            counts = np.diff(batch.host_cu_seqlens_q)
            rows = batch.seq_lens.shape[0]
            batch.memo[name] = (
                rows == batch.num_tokens and bool((counts <= 1).all()) and bool((np.diff(counts) <= 0).all())
            )
        found: bool = batch.memo[name]
        return found

    @cached_property
    def _num_processors(self) -> int:
        if self.cache.device.type != "cuda":
            return _INTERPRETED_PROCESSORS
        return torch.cuda.get_device_properties(self.cache.device).multi_processor_count

    @cached_property
    def _shared_memory(self) -> int:
        """Bytes that one program may have."""
        if self.cache.device.type != "cuda":
            return _INTERPRETED_SHARED_MEMORY
        return torch.cuda.get_device_properties(self.cache.device).shared_memory_per_block_optin


def _pad(dim: int) -> int:
    return max(16, next_power_of_2(dim))


register_backend(TritonBackend.name, TritonBackend)
