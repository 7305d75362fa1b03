"""Measures how close the Triton attention kernels alone come to a GPU's limits.

Decode attention is compared with the copy bandwidth, and prompt attention with the rate of a large matrix product, both
measured in the same run. ``tests/suites/gpu`` tests whether the kernels are correct.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch

import roseplay.kernels  # noqa: F401
from roseplay.bench.ceilings import median_seconds
from roseplay.bench.gpu_machine import Machine
from roseplay.config import SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry
from roseplay.model.attention import AttentionParams, make_backend
from roseplay.model.batch import PagedBatch, build_batch
from roseplay.model.kv_cache import KVCache, LayerShape

_BLOCK_SIZE = 16
_FAR_BEYOND_CACHES = 2**29  # total bytes of the layers in a timed launch


@dataclass(frozen=True, slots=True)
class Shape:
    """A workload of one attention layer: ``rows`` are (new tokens, all tokens including cached ones)."""

    name: str
    rows: tuple[tuple[int, int], ...]
    heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype = torch.bfloat16

    @property
    def num_tokens(self) -> int:
        return sum(count for count, _ in self.rows)

    @property
    def attend_bytes(self) -> int:
        """The fewest bytes that attention can move: keys and values once, queries, and output."""
        numbers = 2 * sum(context for _, context in self.rows) * self.kv_heads + 2 * self.num_tokens * self.heads
        return numbers * self.dim * self.dtype.itemsize

    @property
    def append_bytes(self) -> int:
        """The fewest bytes that appending can move: keys and values, read and written."""
        return 4 * self.num_tokens * self.kv_heads * self.dim * self.dtype.itemsize

    @property
    def flops(self) -> float:
        """Operations of both products over the visible keys: half of the square if nothing was cached."""
        pairs = sum(count * (context - (count - 1) / 2) for count, context in self.rows)
        return 4.0 * pairs * self.heads * self.dim


_LLAMA_8B, _QWEN3 = (32, 8, 128), (16, 8, 128)
DECODES = (
    Shape("decode 64 x 4k, Llama-8B", ((1, 4096),) * 64, *_LLAMA_8B),
    Shape("decode 1 x 4k, Llama-8B", ((1, 4096),), *_LLAMA_8B),
    Shape("decode 8 x 1k, Qwen3-0.6B", ((1, 1024),) * 8, *_QWEN3),
    Shape("decode 256 x 1k, Qwen3-0.6B", ((1, 1024),) * 256, *_QWEN3),
    Shape("decode 64 x 512, GPT-2", ((1, 512),) * 64, 12, 12, 64, torch.float16),
    Shape("48 decodes at 4k and a chunk of 256, Llama-8B", (*((1, 4096),) * 48, (256, 4096)), *_LLAMA_8B),
)
PREFILLS = (
    Shape("prefill 8k, Llama-8B", ((8192, 8192),), *_LLAMA_8B),
    Shape("prefill chunk of 512 after 7.5k, Llama-8B", ((512, 8192),), *_LLAMA_8B),
    Shape("prefill 64 x 256, GPT-2", ((256, 256),) * 64, 12, 12, 64, torch.float16),
)
APPENDS = (
    Shape("append 8192 tokens, Llama-8B", ((8192, 8192),), *_LLAMA_8B),
    Shape("append 64 tokens, Llama-8B", ((1, 16),) * 64, *_LLAMA_8B),
)
TINY = Shape("tiny", ((1, 40), (3, 17)), 4, 2, 32, torch.float32)


def measure(machine: Machine, engine: None) -> dict[str, Any]:
    """Time attention and append alone: medians of replays of a graph, over too many layers for any cache to hold.

    Each entry of ``"decode"``, ``"prefill"`` and ``"append"`` has ``name`` and ``seconds`` of one layer; decodes and appends
    ``bytes_per_s`` and ``bandwidth_fraction`` of the copy bandwidth, prefills ``flops_per_s`` and ``matmul_fraction``.
    """
    device = torch.device(machine.device)

    def against_bandwidth(shape: Shape, seconds: float, num_bytes: int) -> dict[str, Any]:
        moved = num_bytes / seconds
        fraction = moved / machine.bandwidth
        return {"name": shape.name, "seconds": seconds, "bytes_per_s": moved, "bandwidth_fraction": fraction}

    def against_matmul(shape: Shape, seconds: float) -> dict[str, Any]:
        done = shape.flops / seconds
        return {
            "name": shape.name, "seconds": seconds, "flops_per_s": done, "matmul_fraction": done / machine.matmul_flops,
        }  # fmt: skip

    decodes, prefills, appends = ((TINY,),) * 3 if machine.tiny else (DECODES, PREFILLS, APPENDS)
    document: dict[str, Any] = {
        "decode": [against_bandwidth(s, _seconds(s, device), s.attend_bytes) for s in decodes],
        "prefill": [against_matmul(s, _seconds(s, device)) for s in prefills],
        "append": [against_bandwidth(s, _seconds(s, device, append=True), s.append_bytes) for s in appends],
    }
    first = document["decode"][0]
    share = first["bandwidth_fraction"]
    return {"share": share, "figure": f"{first['name']} at {share:.0%} of copy bandwidth", **document}


def _seconds(shape: Shape, device: torch.device, *, append: bool = False) -> float:
    """Returns the seconds of one layer's attention (or append) on random numbers."""
    num_blocks = sum(-(-context // _BLOCK_SIZE) for _, context in shape.rows) + 1
    pool = 2 * num_blocks * shape.kv_heads * _BLOCK_SIZE * shape.dim * shape.dtype.itemsize
    layers = max(1, min(64, math.ceil(_FAR_BEYOND_CACHES / pool))) if device.type == "cuda" else 2
    cache = KVCache(
        {layer: LayerShape(shape.kv_heads, shape.dim, shape.dim) for layer in range(layers)},
        num_blocks=num_blocks,
        block_size=_BLOCK_SIZE,
        dtype=shape.dtype,
        device=device,
    )
    for blocks in (*cache.keys.values(), *cache.values.values()):
        blocks.normal_()
    batch = _batch(shape, num_blocks, device)
    q, k, v = (
        torch.randn((shape.num_tokens, heads, shape.dim), dtype=shape.dtype, device=device)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    backend = make_backend("triton", cache)

    def all_layers() -> None:
        for layer in range(layers):
            if append:
                backend.append(layer, k, v, batch)
            else:
                backend.attend(layer, q, k, v, batch, AttentionParams(shape.dim**-0.5))

    all_layers()  # compiles
    if device.type != "cuda":
        return median_seconds(all_layers, "cpu") / layers
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_layers()
    return median_seconds(graph.replay, str(device)) / layers


def _batch(shape: Shape, num_blocks: int, device: torch.device) -> PagedBatch:
    """Returns the shape's rows as a step, with blocks scattered over the pool."""
    blocks = random.Random(0).sample(range(1, num_blocks), num_blocks - 1)
    entries = []
    for number, (count, context) in enumerate(shape.rows):
        request = Request(number, [0] * context, SamplingParams())
        used = -(-context // _BLOCK_SIZE)
        request.block_table, blocks = blocks[:used], blocks[used:]
        entries.append(StepEntry(request, context - count, count))
    batch = build_batch(
        Step(0, entries), [0], num_blocks=num_blocks, block_size=_BLOCK_SIZE, vocab_size=1, device=device
    )
    assert batch is not None  # it computes tokens
    return batch
