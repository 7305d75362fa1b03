"""Measures how close attention, append, sampling and matrix products alone come to a GPU's limits.

What reads memory is compared with the copy bandwidth, and what computes with the rate of a large matrix product, both
measured in the same run. ``gpu_checks`` and ``tests/suites/gpu`` say whether the kernels are correct.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F

from roseplay.bench.gpu_machine import Figures, Machine
from roseplay.config import SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry
from roseplay.doctor.ceilings import median_seconds
from roseplay.kernels.cuda.attention.backend import TritonBackend
from roseplay.kernels.cuda.attention.tiles import ChooseTiles, choose_tiles
from roseplay.model.accelerator import accelerator_for
from roseplay.model.attention import AttentionBackend, AttentionParams
from roseplay.model.batch import HostBatch, pack_step
from roseplay.model.kv_cache import KVCache, LayerShape
from roseplay.model.padding import pad
from roseplay.model.sampler import draw

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


class Layers:
    """Attention layers of one workload, on random numbers: too many for any cache to hold what they read.

    Args:
        layers: their number; by default as many as are needed for that.
        padding: tokens and rows that a graph's size would add.
    """

    def __init__(self, shape: Shape, device: torch.device, *, layers: int | None = None, padding: int = 0) -> None:
        num_blocks = sum(-(-context // _BLOCK_SIZE) for _, context in shape.rows) + 1
        pool = 2 * num_blocks * shape.kv_heads * _BLOCK_SIZE * shape.dim * shape.dtype.itemsize
        many = max(1, min(64, math.ceil(_FAR_BEYOND_CACHES / pool))) if device.type == "cuda" else 2
        self.device, self.count = device, layers or many
        self.cache = KVCache(
            {layer: LayerShape(shape.kv_heads, shape.dim, shape.dim) for layer in range(self.count)},
            num_blocks=num_blocks,
            block_size=_BLOCK_SIZE,
            dtype=shape.dtype,
            device=device,
        )
        for blocks in (*self.cache.keys.values(), *self.cache.values.values()):
            blocks.normal_()
        self._batch = _batch(shape, num_blocks, padding).upload(device)
        self._params = AttentionParams(shape.dim**-0.5)
        self._q, self._k, self._v = (
            torch.randn((self._batch.num_tokens, heads, shape.dim), dtype=shape.dtype, device=device)
            for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
        )

    def attend(self, backend: AttentionBackend) -> torch.Tensor:
        """Compute all layers; returns the output of the last."""
        self._batch.memo.clear()  # of another backend
        for layer in range(self.count):
            out = backend.attend(layer, self._q, self._k, self._v, self._batch, self._params)
        return out

    def append(self, backend: AttentionBackend) -> None:
        """Append the keys and values of all layers."""
        for layer in range(self.count):
            backend.append(layer, self._k, self._v, self._batch)


Result = TypeVar("Result")


def replayed(run: Callable[[], Result], device: torch.device) -> tuple[Result, Callable[[], Any]]:
    """Run something once, which compiles it, and capture it; returns its result, which a call of the second value, a
    replay, writes again. On a CPU nothing is captured, and the call runs it."""
    result = run()
    if device.type != "cuda":
        return result, run
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return result, graph.replay


def layer_seconds(
    shape: Shape, device: torch.device, *, append: bool = False, tiles: ChooseTiles = choose_tiles
) -> float:
    """Returns the seconds of one layer's attention (or append) by Triton, from replays of a graph."""
    layers = Layers(shape, device)
    backend = TritonBackend(layers.cache, tiles=tiles)
    run = partial(layers.append if append else layers.attend, backend)
    return median_seconds(replayed(run, device)[1], str(device)) / layers.count


def attention(machine: Machine, engine: None) -> Figures:
    """Time attention and append alone: medians of replays of a graph, over too many layers for any cache to hold.

    Each entry of ``"decode"``, ``"prefill"`` and ``"append"`` has ``name``, ``seconds`` of one layer, and what it does a
    second as ``per_s`` and ``share``: bytes of the copy bandwidth, or for prefills operations of the matrix rate.
    """

    def row(shape: Shape, work: float, rate: float, *, append: bool = False) -> Figures:
        seconds = layer_seconds(shape, torch.device(machine.device), append=append)
        return {"name": shape.name, "seconds": seconds, "per_s": work / seconds, "share": work / seconds / rate}

    decodes, prefills, appends = ((TINY,),) * 3 if machine.tiny else (DECODES, PREFILLS, APPENDS)
    document: Figures = {
        "decode": [row(shape, shape.attend_bytes, machine.bandwidth) for shape in decodes],
        "prefill": [row(shape, shape.flops, machine.matmul_flops) for shape in prefills],
        "append": [row(shape, shape.append_bytes, machine.bandwidth, append=True) for shape in appends],
    }
    shares = [f"{found['name']} {found['share']:.0%}" for found in document["decode"] + document["append"]]
    shares += [f"{found['name']} {found['share']:.0%} of the matrix rate" for found in document["prefill"]]
    return {"share": document["decode"][0]["share"], "figure": "; ".join(shares), **document}


def sampler(machine: Machine, engine: None) -> Figures:
    """Draw 256 tokens of Qwen3's vocabulary by the kernels and by torch: milliseconds, and how many times the logits could
    be read in them."""
    rows, vocabulary = machine.size(256, 4), machine.size(151_936, 500)
    logits = torch.randn((rows, vocabulary), device=machine.device).bfloat16()
    ways = {
        "greedy": SamplingParams(temperature=0.0),
        "temperature": SamplingParams(temperature=1.0, seed=1),
        "top-k 20, top-p 0.95": SamplingParams(temperature=0.6, top_k=20, top_p=0.95, seed=1),
        "top-p 0.95": SamplingParams(temperature=1.0, top_p=0.95, seed=1),
    }
    found: Figures = {}
    for name, params in ways.items():
        requests = [Request(number, [1, 2, 3], params) for number in range(rows)]
        for by, kernels in {"kernels": accelerator_for(logits.device), "torch": None}.items():
            seconds = median_seconds(partial(draw, logits, requests, wait=False, kernels=kernels), machine.device)
            passes = seconds * machine.bandwidth / (logits.numel() * logits.itemsize)
            found.setdefault(name, {})[by] = {"ms": seconds * 1e3, "passes": passes}
    figure = "; ".join(
        f"{name} {way['kernels']['ms']:.2f} ms ({way['kernels']['passes']:.0f} passes), torch {way['torch']['ms']:.2f} ms"
        for name, way in found.items()
    )
    return {"ways": found, "figure": f"{rows} rows: {figure}"}


def matrices(machine: Machine, engine: None) -> Figures:
    """The products of a layer of Qwen3-8B: the share of the bandwidth or of the matrix rate, whichever limits them."""
    width, inner = machine.size(4096, 64), machine.size(12_288, 128)
    sides = {
        "q": (width, width),
        "k and v": (width // 2, width),
        "gate and up": (2 * inner, width),
        "down": (width, inner),
    }
    weights = {
        name: torch.randn(side, dtype=torch.bfloat16, device=machine.device) / side[1] ** 0.5
        for name, side in {**sides, "o": (width, width)}.items()
    }
    found = {}
    for tokens in (1, 32, 256, machine.size(8192, 512)):
        inputs = {
            side: torch.randn((tokens, side), dtype=torch.bfloat16, device=machine.device) for side in (width, inner)
        }

        def all_products(inputs: dict[int, torch.Tensor] = inputs) -> torch.Tensor:
            return [F.linear(inputs[weight.shape[1]], weight) for weight in weights.values()][-1]

        seconds = median_seconds(replayed(all_products, torch.device(machine.device))[1], machine.device)
        numbers = sum(weight.numel() for weight in weights.values())
        floor = max(2 * numbers / machine.bandwidth, 2.0 * numbers * tokens / machine.matmul_flops)
        found[tokens] = {"seconds": seconds, "share": floor / seconds}
    shares = ", ".join(f"{way['share']:.0%} with {tokens} tokens" for tokens, way in found.items())
    return {"tokens": found, "figure": f"of a layer: {shares}"}


def _batch(shape: Shape, num_blocks: int, padding: int) -> HostBatch:
    """Returns the shape's rows as a step, with blocks scattered over the pool."""
    blocks = random.Random(0).sample(range(1, num_blocks), num_blocks - 1)
    entries = []
    for number, (count, context) in enumerate(shape.rows):
        request = Request(number, [0] * context, SamplingParams())
        used = -(-context // _BLOCK_SIZE)
        request.block_table, blocks = blocks[:used], blocks[used:]
        entries.append(StepEntry(request, context - count, count))
    host = pack_step(Step(0, entries), [0], num_blocks=num_blocks, block_size=_BLOCK_SIZE, vocab_size=1)
    assert host is not None  # it computes tokens
    if not padding:
        return host
    rows = host.num_rows + (padding if host.decodes_only else 1)
    return pad(host, num_tokens=host.num_tokens + padding, num_rows=rows, num_logits=1, block_size=_BLOCK_SIZE)
