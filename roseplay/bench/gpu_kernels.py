"""The Triton attention kernels by themselves: whether they are right on a device, and how near to its limits they come.

``check`` runs the same cases as the tests do, against the reference backend, and replays captured launches with other
numbers. ``measure`` sets decode attention against the copy bandwidth and prompt attention against the rate of a large
matrix product, both measured in the same run.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

import roseplay.kernels  # noqa: F401
from roseplay.bench.bandwidth import read_bandwidth
from roseplay.bench.gpu_cases import (
    TOLERANCE,
    Bucket,
    Case,
    Problem,
    large_cases,
    make_batch,
    make_problem,
    pairwise_cases,
    relative_error,
    right_answer,
)
from roseplay.model.attention import AttentionParams, make_backend
from roseplay.model.kv_cache import KVCache, LayerShape

_FAR_BEYOND_CACHES = 2**29  # bytes that the layers of a timed launch hold together
_REPLAYS = 9


def check(device: torch.device | str, cases: Sequence[Case] | None = None) -> dict[str, Any]:
    """Hold the Triton backend to the reference, on ``device`` (a CPU: in Triton's interpreter).

    Args:
        cases: those of the tests, and on a CUDA device the large ones too.

    Returns ``{"passed", "num_cases", "failed": [names], "worst": {dtype: error}, "tolerance": {dtype: error},
    "errors": {name: error or what was raised}, "seconds"}``; an error is ``||found - right|| / ||right||``.
    """
    device = torch.device(device)
    if cases is None:
        cases = [*pairwise_cases(), *(large_cases() if device.type == "cuda" else ())]
    began = time.perf_counter()
    errors: dict[str, float | str] = {}
    failed: list[str] = []
    worst: dict[str, float] = {}

    def note(name: str, dtype: torch.dtype, error_of: Callable[[], float]) -> None:
        try:
            error: float | str = error_of()
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
        errors[name] = error
        if isinstance(error, str) or not error <= TOLERANCE[dtype]:
            failed.append(name)
        if not isinstance(error, str):
            key = str(dtype).removeprefix("torch.")
            worst[key] = max(worst.get(key, 0.0), error)

    for seed, case in enumerate(cases):
        note(str(case), case.dtype, partial(_error, case, device, seed))
    for name, (bucket, same) in REPLAYS.items():
        note(name, same[0].dtype, partial(replay_error, bucket, same, device))
    return {
        "passed": not failed,
        "num_cases": len(errors),
        "failed": failed,
        "worst": worst,
        "tolerance": {str(dtype).removeprefix("torch."): bound for dtype, bound in TOLERANCE.items()},
        "errors": errors,
        "seconds": time.perf_counter() - began,
    }


def _error(case: Case, device: torch.device, seed: int) -> float:
    problem = make_problem(case, device, seed)
    found = problem.attend(make_backend("triton", problem.cache))
    return relative_error(found, right_answer(problem))


def _replay(rows: str, dtype: torch.dtype, **others: Any) -> Case:
    settings = {"window": None, "softcap": None, "sinks": False, "strided": False, "dims": (64, 64), "heads": (8, 2)}
    return Case(rows=rows, dtype=dtype, block_size=16, padded=True, **{**settings, **others})


# Launches captured with the first batch of each, replayed with the others in its place.
REPLAYS: dict[str, tuple[Bucket, tuple[Case, ...]]] = {
    "replay decodes": (
        Bucket(num_rows=4, num_tokens=4, table_width=48, num_blocks=64),
        tuple(_replay(rows, torch.float16) for rows in ("decodes", "a long decode", "one token")),
    ),
    "replay any batch": (
        Bucket(num_rows=6, num_tokens=32, table_width=48, num_blocks=64),
        tuple(
            _replay(rows, torch.float32, window=40, sinks=True)
            for rows in ("decodes", "mixed", "a prompt", "chunks", "a long decode")
        ),
    ),
    "replay as many rows as tokens": (
        Bucket(num_rows=6, num_tokens=6, table_width=48, num_blocks=64),
        tuple(_replay(rows, torch.bfloat16) for rows in ("drafts", "decodes")),
    ),
}


def replay_error(bucket: Bucket, cases: Sequence[Case], device: torch.device) -> float:
    """The worst error when launches made for the first case run again with the others' numbers in the same tensors.

    On a CUDA device they are replayed from a graph; elsewhere the calls are made again, with nothing but the device's
    tensors changed: whoever looked at the host's copies would still see the first batch.
    """
    static = make_problem(cases[0], device, bucket=bucket)
    backend = make_backend("triton", static.cache)
    static.attend(backend)  # compiles
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = static.attend(backend)
    worst = 0.0
    for seed, case in enumerate((*cases[1:], cases[0])):
        problem = make_problem(case, device, seed + 1, bucket)
        _put(problem, static)
        if device.type == "cuda":
            graph.replay()
        else:
            out = static.attend(backend)
        worst = max(worst, relative_error(out, right_answer(problem)))
    return worst


def _put(source: Problem, target: Problem) -> None:
    """Copy a problem's numbers into the tensors of another of the same sizes."""
    for name in ("q", "k", "v"):
        getattr(target, name).copy_(getattr(source, name))
    for name in ("slot_mapping", "cu_seqlens_q", "seq_lens", "block_tables"):
        getattr(target.batch, name).copy_(getattr(source.batch, name))
    target.cache.keys[0].copy_(source.cache.keys[0])
    target.cache.values[0].copy_(source.cache.values[0])
    if target.params.sinks is not None and source.params.sinks is not None:
        target.params.sinks.copy_(source.params.sinks)


@dataclass(frozen=True, slots=True)
class Shape:
    """A workload of one attention layer: ``rows`` are (new tokens, tokens with those in the cache)."""

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
        """The least that attention moves: keys and values once, queries, output."""
        numbers = 2 * sum(context for _, context in self.rows) * self.kv_heads + 2 * self.num_tokens * self.heads
        return numbers * self.dim * self.dtype.itemsize

    @property
    def append_bytes(self) -> int:
        """The least that appending moves: keys and values, read and written."""
        return 4 * self.num_tokens * self.kv_heads * self.dim * self.dtype.itemsize

    @property
    def flops(self) -> float:
        """Of both products, over the keys that are seen: half of the square where nothing was cached."""
        pairs = sum(count * (context - (count - 1) / 2) for count, context in self.rows)
        return 4.0 * pairs * self.heads * self.dim


_LLAMA_8B, _QWEN3 = (32, 8, 128), (16, 8, 128)
GOAL, GOAL_FRACTION = Shape("decode 64 x 4k, Llama-8B", ((1, 4096),) * 64, *_LLAMA_8B), 0.8
DECODES = (
    GOAL,
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


def measure(device: torch.device | str, *, tiny: bool = False) -> dict[str, Any]:
    """Time attention and append by themselves, medians of replays of a graph over layers that no cache holds.

    ``tiny`` runs the same code once on small shapes, on any device: the figures mean nothing.

    Returns ``{"figure", "reached", "copy_bytes_per_s", "matmul_flops_per_s", "decode": [...], "prefill": [...],
    "append": [...]}``: ``figure`` says in words how ``GOAL`` did and ``reached`` whether that is enough. Each entry has
    ``name`` and ``seconds`` of one layer; decodes and appends ``bytes_per_s`` and ``bandwidth_fraction`` of the copy
    bandwidth, prefills ``flops_per_s`` and ``matmul_fraction``. Raises ``ValueError`` without a CUDA device, unless tiny.
    """
    device = torch.device(device)
    if device.type != "cuda" and not tiny:
        raise ValueError(f"kernels are measured on a CUDA device, this is {device}")
    bandwidth = read_bandwidth(str(device))
    rate = _matmul_rate(device, 64 if tiny else 8192)

    def against_bandwidth(shape: Shape, seconds: float, num_bytes: int) -> dict[str, Any]:
        moved = num_bytes / seconds
        fraction = moved / bandwidth
        return {"name": shape.name, "seconds": seconds, "bytes_per_s": moved, "bandwidth_fraction": fraction}

    def against_matmul(shape: Shape, seconds: float) -> dict[str, Any]:
        done = shape.flops / seconds
        return {"name": shape.name, "seconds": seconds, "flops_per_s": done, "matmul_fraction": done / rate}

    decodes, prefills, appends = ((TINY,),) * 3 if tiny else (DECODES, PREFILLS, APPENDS)
    document: dict[str, Any] = {
        "copy_bytes_per_s": bandwidth,
        "matmul_flops_per_s": rate,
        "decode": [against_bandwidth(s, _seconds(s, device), s.attend_bytes) for s in decodes],
        "prefill": [against_matmul(s, _seconds(s, device)) for s in prefills],
        "append": [against_bandwidth(s, _seconds(s, device, append=True), s.append_bytes) for s in appends],
    }
    first = document["decode"][0]
    figure = f"{first['name']} at {first['bandwidth_fraction']:.0%} of copy bandwidth"
    reached = None if tiny else first["bandwidth_fraction"] >= GOAL_FRACTION
    return {"figure": figure, "reached": reached, **document}


def _seconds(shape: Shape, device: torch.device, *, append: bool = False) -> float:
    """Of one layer's attention (or append), on random numbers."""
    block_size = 16
    used = [-(-context // block_size) for _, context in shape.rows]
    num_blocks = sum(used) + 2
    pool = 2 * num_blocks * shape.kv_heads * block_size * shape.dim * shape.dtype.itemsize
    layers = max(1, min(64, math.ceil(_FAR_BEYOND_CACHES / pool))) if device.type == "cuda" else 2
    cache = KVCache(
        {layer: LayerShape(shape.kv_heads, shape.dim, shape.dim) for layer in range(layers)},
        num_blocks=num_blocks,
        block_size=block_size,
        dtype=shape.dtype,
        device=device,
    )
    for blocks in (*cache.keys.values(), *cache.values.values()):
        blocks.normal_()
    bucket = Bucket(len(shape.rows), shape.num_tokens, max(used), num_blocks)
    batch = make_batch(shape.rows, block_size, bucket, np.random.default_rng(0), device)
    q, k, v = (
        torch.randn((shape.num_tokens, heads, shape.dim), dtype=shape.dtype, device=device)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    backend = make_backend("triton", cache)

    def call(layer: int) -> None:
        if append:
            backend.append(layer, k, v, batch)
        else:
            backend.attend(layer, q, k, v, batch, AttentionParams(shape.dim**-0.5))

    return _time(call, layers, device)


def _matmul_rate(device: torch.device, size: int) -> float:
    """Floating-point operations a second of a square matrix product in bfloat16."""
    a, b = (torch.randn((size, size), dtype=torch.bfloat16, device=device) for _ in range(2))
    return 2.0 * size**3 / _time(lambda _: a @ b, 1, device)


def _time(call: Callable[[int], Any], layers: int, device: torch.device) -> float:
    """Median seconds of a call, over replays of a graph that makes one for each layer; on a CPU of plain calls."""
    call(0)  # compiles
    if device.type != "cuda":
        began = time.perf_counter()
        for layer in range(layers):
            call(layer)
        return (time.perf_counter() - began) / layers
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(layers):
            call(layer)
    took = []
    for _ in range(_REPLAYS + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) / 1000 / layers)
    return statistics.median(took[2:])
