"""Attention for CUDA devices, in Triton; on a CPU it runs in Triton's interpreter (``TRITON_INTERPRET=1``), for tests.

Nothing here reads values from the device, and launches depend only on shapes, so that a step can be captured in a CUDA
graph and replayed with other values in the batch's tensors. A graph captured with one token a row can be replayed for
batches of at most one token a row, and any other graph for every batch that fits its tensors.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from roseplay.kernels.cuda.attention.tiles import (
    Launch,
    TensorCores,
    Tiles,
    choose_tiles,
    more_for_decodes,
    split_prompts,
    tensor_cores,
)
from roseplay.kernels.cuda.dots import next_power_of_2, pad, precision
from roseplay.model.attention.interface import AttentionParams, register_backend
from roseplay.model.attention.pattern import Reach
from roseplay.model.batch import PagedBatch
from roseplay.model.kv_cache import KVCache

_LEAST_CAPABILITY = (8, 0)
# Numbers of a layer's keys that a program of the append kernel copies: 16 bytes for each of its 128 threads.
_APPEND_NUMBERS = 1024
# Query tiles, times parts of heads, whose contexts may be split; there are enough programs with fewer.
_MOST_SPLIT_TILES = 2**16
_ROWS_OF_A_PLAN = 256  # that its program reads at once
_LOG2_E = math.log2(math.e)  # the kernels' exponentials are powers of 2


@dataclass(frozen=True, slots=True)
class _Device:
    """Multiprocessors, bytes of shared memory available to a program, and instructions for matrix products."""

    processors: int
    shared_memory: int
    tensor_cores: TensorCores


# The interpreter has no multiprocessors; this number makes it split contexts as a GPU does.
_INTERPRETED = _Device(4, 227 * 1024, "wgmma")


@dataclass(frozen=True, slots=True)
class _Plan:
    """A launch of the attention kernel.

    Attributes:
        grid: query tiles, parts of heads, and splits of each context; or, for decodes, programs and parts of heads.
        programs: for decodes, what each program computes, as ``plan_kernel`` writes it.
    """

    tiles: Tiles
    grid: tuple[int, int, int]
    programs: torch.Tensor | None = None


def available() -> bool:
    """Returns whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def interprets() -> bool:
    """Returns whether Triton interprets its kernels, on a CPU."""
    if not available():
        return False
    import triton

    return bool(triton.knobs.runtime.interpret)


def missing(device: torch.device) -> str | None:
    """Returns what the Triton backend needs and does not have on a GPU; None if it can run there."""
    if not available():
        return "needs Triton: install roseplay[triton]"
    if torch.version.hip is None:
        capability = torch.cuda.get_device_capability(device)
        if capability < _LEAST_CAPABILITY:  # tiles for prompts take more shared memory than these GPUs have
            least, level = (".".join(map(str, version)) for version in (_LEAST_CAPABILITY, capability))
            return f"needs compute capability {least} or higher, this GPU has {level}"
    return None


class TritonBackend:
    """See ``AttentionBackend`` for the calls.

    The result for tokens after the last row (padding of a bucket) is 0; their keys and values are written to the slots
    in the batch, where -1 means block 0.

    Raises ``ValueError`` if it cannot run on the device, which is a GPU unless Triton interprets.
    """

    name = "triton"

    def __init__(self, cache: KVCache) -> None:
        on_gpu = cache.device.type == "cuda"
        why = missing(cache.device) if on_gpu or not available() else None
        if why is not None:
            raise ValueError(f"attention='triton' {why}")
        self._interpreted = interprets()
        if not on_gpu and not self._interpreted:
            raise ValueError(f"attention='triton' needs a CUDA device, the model is on {cache.device}")
        self.cache = cache
        # One launch after another counts in the same numbers, and leaves them 0.
        self._arrived = torch.zeros(_MOST_SPLIT_TILES, dtype=torch.int32, device=cache.device)
        self._no_parts = torch.zeros(16, device=cache.device)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch) -> None:
        if batch.batched_append:
            self._append(layer, k, v, batch.slot_mapping)
            return
        for begin, end in pairwise(batch.host_cu_seqlens_q.tolist()):
            self._append(layer, k[begin:end], v[begin:end], batch.slot_mapping[begin:end])

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: PagedBatch, params: AttentionParams
    ) -> torch.Tensor:
        from roseplay.kernels.cuda.attention.kernels import attend_kernel

        keys, values = self.cache.keys[layer], self.cache.values[layer]
        scales = self.cache.scales.get(layer)
        num_tokens, num_heads = q.shape[:2]
        block_size, k_dim, v_dim = self.cache.block_size, keys.shape[-1], values.shape[-1]
        rest = k_dim - v_dim if self.cache.shapes[layer].values_in_keys else 0
        softcap, sinks = params.softcap, params.sinks
        plan = self._plan(layer, num_heads, batch, params.reach, q.itemsize if scales else keys.itemsize)
        tiles, decode = plan.tiles, plan.programs is not None
        rows = tiles.heads * (1 if decode else tiles.block_q)
        out = q.new_empty((num_tokens, num_heads, v_dim))
        parts = lse = self._no_parts
        if decode or plan.grid[2] > 1:
            parts = q.new_empty((math.prod(plan.grid), rows, v_dim), dtype=torch.float32)
            lse = q.new_empty((math.prod(plan.grid), rows), dtype=torch.float32)
        q = q.to(keys.dtype) if scales is None else q
        with torch.cuda.device_of(q):
            attend_kernel[plan.grid](
                out, parts, lse, self._arrived, self._arrived if plan.programs is None else plan.programs,
                q, keys, values, *(scales or (keys, values)), batch.block_tables, batch.cu_seqlens_q, batch.seq_lens,
                q if sinks is None else sinks,
                num_tokens, batch.seq_lens.shape[0], batch.block_tables.stride(0),
                _LOG2_E * params.scaling * (2 / softcap if softcap else 1), _LOG2_E * (softcap or 0),
                q.stride(0), q.stride(1), keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
                keys.shape[1] * block_size, NUM_HEADS=num_heads, GROUP=num_heads // keys.shape[1], HEADS=tiles.heads,
                BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, BLOCK_SIZE=block_size,
                K_DIM=k_dim - rest, V_DIM=v_dim, K_PAD=pad(k_dim - rest), V_PAD=pad(v_dim),
                REST=rest, REST_PAD=pad(rest), ROWS=rows, JOIN=next_power_of_2(rows), DECODE=decode,
                WINDOW=params.reach.window or 0, CHUNK=params.reach.chunk or 0,
                SOFTCAP=bool(softcap), SINKS=sinks is not None,
                WIDEN=self._interpreted, PRECISION=precision(q.dtype), INT8=scales is not None,
                num_warps=tiles.num_warps, num_stages=tiles.num_stages,
            )  # fmt: skip
        return out

    def _plan(self, layer: int, num_heads: int, batch: PagedBatch, reach: Reach, itemsize: int) -> _Plan:
        """Returns the launch, which is the same for layers of one shape and therefore computed once a step."""
        shape, block_size = self.cache.shapes[layer], self.cache.block_size
        name = ("triton", num_heads, shape, reach)
        if name not in batch.memo:
            device, decode_only = self._device, _one_token_a_row(batch)
            num_rows, group = batch.seq_lens.shape[0], num_heads // shape.num_kv_heads
            tiles = choose_tiles(
                Launch(
                    decode_only=decode_only,
                    num_tokens=batch.num_tokens,
                    num_rows=num_rows,
                    group=group,
                    k_dim=shape.k_dim,
                    v_dim=shape.v_dim,
                    values_in_keys=shape.values_in_keys,
                    itemsize=itemsize,
                    shared_memory=device.shared_memory,
                    tensor_cores=device.tensor_cores,
                )
            )
            head_parts = shape.num_kv_heads * -(-group // tiles.heads)
            if decode_only:
                more = more_for_decodes(head_parts, device.processors)
                more = more if num_rows * head_parts <= _MOST_SPLIT_TILES else 0
                programs = self._plan_decodes(batch.seq_lens, num_rows + more, tiles, reach)
                batch.memo[name] = _Plan(tiles, (num_rows + more, head_parts, 1), programs)
            else:
                query_tiles = -(-batch.num_tokens // tiles.block_q) + num_rows
                most_keys = batch.block_tables.shape[1] * block_size
                most_keys = min(most_keys, reach.most + tiles.block_q) if reach.most else most_keys
                splits = split_prompts(query_tiles * head_parts, most_keys, tiles.block_n, device.processors)
                batch.memo[name] = _Plan(tiles, (query_tiles, head_parts, splits))
        plan: _Plan = batch.memo[name]
        return plan

    def _plan_decodes(self, seq_lens: torch.Tensor, num_programs: int, tiles: Tiles, reach: Reach) -> torch.Tensor:
        from roseplay.kernels.cuda.attention.plan import plan_kernel

        programs = seq_lens.new_empty((3, num_programs), dtype=torch.int32)
        with torch.cuda.device_of(seq_lens):
            plan_kernel[1,](
                programs, seq_lens, len(seq_lens), num_programs,
                BLOCK_N=tiles.block_n, WINDOW=reach.window or 0, CHUNK=reach.chunk or 0,
                BLOCK=_ROWS_OF_A_PLAN,
            )  # fmt: skip
        return programs

    def _append(self, layer: int, k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        from roseplay.kernels.cuda.attention.append import append_kernel

        keys, values, scales = self.cache.keys[layer], self.cache.values[layer], self.cache.scales.get(layer)
        num_tokens, num_heads, k_dim = k.shape
        v_dim = 0 if self.cache.shapes[layer].values_in_keys else v.shape[2]
        block_h = min(next_power_of_2(num_heads), max(1, _APPEND_NUMBERS // pad(max(k_dim, v_dim))))
        with torch.cuda.device_of(k):
            append_kernel[num_tokens, -(-num_heads // block_h)](
                k, v, keys, values, *(scales or (keys, values)), slot_mapping,
                k.stride(0), k.stride(1), v.stride(0), v.stride(1),
                keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
                NUM_HEADS=num_heads, BLOCK_H=block_h, BLOCK_SIZE=self.cache.block_size,
                K_DIM=k_dim, V_DIM=v_dim, K_PAD=pad(k_dim), V_PAD=pad(v_dim), INT8=scales is not None,
            )  # fmt: skip

    @cached_property
    def _device(self) -> _Device:
        if self.cache.device.type != "cuda":
            return _INTERPRETED
        import triton

        index = torch.device(self.cache.device).index
        index = torch.cuda.current_device() if index is None else index
        properties = triton.runtime.driver.active.utils.get_device_properties(index)
        capability = torch.cuda.get_device_capability(index)[0] if torch.version.hip is None else None
        return _Device(properties["multiprocessor_count"], properties["max_shared_mem"], tensor_cores(capability))


def _one_token_a_row(batch: PagedBatch) -> bool:
    """Returns whether token r is the only one of row r, for all tokens; padding rows at the end may have none."""
    counts = np.diff(batch.host_cu_seqlens_q)
    return len(counts) == batch.num_tokens and bool(counts.max() <= 1 and (np.diff(counts) <= 0).all())


register_backend(
    TritonBackend.name, TritonBackend, suits=lambda device: device.type == "cuda" and missing(device) is None
)
