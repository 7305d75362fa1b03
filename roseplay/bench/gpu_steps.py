"""A model runner alone, driven step by step: what its start costs, what is compiled while it serves, what a replay runs."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import roseplay.kernels  # noqa: F401
from roseplay.bench.gpu_machine import Figures, Machine
from roseplay.config import SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry
from roseplay.model import gpu_memory
from roseplay.model.batch import HostBatch, pack_step
from roseplay.model.loader import load_model
from roseplay.model.runner import ModelRunner

_PROMPTS = (1, 2, 3, 15, 16, 17, 40, 64, 129, 300, 700, 1100, 1900)
_DECODES = (1, 2, 3, 8, 33, 64, 100, 256)
_CONTEXTS = (5, 100, 1000, 1900)
_SAMPLING = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6, top_k=20, top_p=0.95, logprobs=2),
    SamplingParams(temperature=1.0, top_p=0.9, min_p=0.01, repetition_penalty=1.1, seed=3),
)
_SHOWN = 8  # kernels of the table that are printed


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Yields a list to which the names of Triton's kernels are added as they are compiled, or loaded from its cache."""
    names: list[str] = []
    if importlib.util.find_spec("triton") is None:
        yield names
        return
    from triton import knobs

    def note(*, repr: str, **others: Any) -> None:
        names.append(repr)

    before = knobs.runtime.jit_post_compile_hook
    knobs.runtime.jit_post_compile_hook = note
    try:
        yield names
    finally:
        knobs.runtime.jit_post_compile_hook = before


@contextlib.contextmanager
def running(machine: Machine, shape: str) -> Iterator[tuple[ModelRunner, Figures]]:
    """Yields a runner and what its start took; frees its memory at the end."""
    config = machine.config()
    began = time.perf_counter()
    loaded = load_model(machine.model(shape), config)
    read = time.perf_counter()
    runner = ModelRunner(loaded, config)
    del loaded
    accelerator, info = runner.accelerator, runner.info()
    try:
        yield (
            runner,
            {
                "load_s": read - began,
                "start_s": time.perf_counter() - read,
                "compile_s": getattr(accelerator, "compile_s", 0.0),
                "capture_s": getattr(accelerator, "capture_s", 0.0),
                "graph_bytes": getattr(accelerator, "graph_bytes", 0),
                "graphs": info.cuda_graphs,
                "no_graphs": info.no_cuda_graphs,
                "num_blocks": info.num_blocks,
            },
        )
    finally:
        del accelerator
        runner.close()
        gc.collect()
        if machine.on_gpu:
            gpu_memory.empty_cache()


def start(shape: str, machine: Machine, engine: None) -> Figures:
    """The start of a model, and the kernels that are compiled while it serves: there must be none."""
    with compilations() as names, running(machine, shape) as (runner, found):
        at_start = len(names)
        steps = serve(runner)
        late = names[at_start:]
    figure = (
        f"{found['load_s']:.1f} s to load, {found['compile_s']:.1f} s to compile {at_start} kernels,"
        f" {found['capture_s']:.1f} s to capture {found['graphs']} graphs of {found['graph_bytes'] / 2**20:,.0f} MiB;"
        f" {len(late)} compiled in {steps} steps"
    )
    wrong = bool(late) or found["graphs"] == 0
    return {
        **found,
        "compiled_at_start": at_start,
        "compiled_while_serving": late,
        "counted": machine.on_gpu,
        "steps": steps,
        "wrong": wrong,
        "figure": figure,
    }


def serve(runner: ModelRunner) -> int:
    """Run steps of prompts, decodes and mixtures of many sizes, replayed and launched; returns their number."""
    limit, most = runner.loaded.max_model_len, (runner.num_blocks - 1) * runner.block_size
    decodes = [[(context, 1)] * rows for context in _CONTEXTS for rows in _DECODES]
    prompts = [[(0, length)] for length in _PROMPTS]
    mixed = [[(context, 1)] * rows + [(0, length)] for context in _CONTEXTS for rows in (1, 40) for length in (7, 200)]
    chunks = [[(512, 200)], [(16, 3)], [(100, 1), (100, 4)], [(0, 20)] * 30]
    ran = 0
    for rows in (*decodes, *prompts, *mixed, *chunks):
        totals = [-(-(start + count) // runner.block_size) * runner.block_size for start, count in rows]
        if max(totals) > limit or sum(totals) > most:
            continue
        for graphs in (True, False):
            runner.execute(_step(runner, rows, ran, graphs))
            ran += 1
    return ran


def _step(runner: ModelRunner, rows: list[tuple[int, int]], number: int, graphs: bool) -> Step:
    """Returns a step of (start, tokens) for each row; what a request computed before it is whatever its blocks hold."""
    entries, block = [], 1
    for index, (start, count) in enumerate(rows):
        request = Request(index, [5] * (start + count), _SAMPLING[(number + index) % len(_SAMPLING)])
        blocks = -(-(start + count) // runner.block_size)
        request.block_table = list(range(block, block + blocks))
        block += blocks
        entries.append(StepEntry(request, start, count, samples=True, logits_entry=index))
    return Step(number, entries, cuda_graphs=graphs)


# -- what a replay runs


def replay(shape: str, machine: Machine, engine: None) -> Figures:
    """The kernels of one replay: their names, how often they run, and for how long."""
    tables, figures = {}, []
    with running(machine, shape) as (runner, about):
        if about["no_graphs"]:
            return {"wrong": True, "figure": f"no graphs: {about['no_graphs']}"}
        for batch in (1, machine.size(32, 2)):
            host = _decodes(runner, batch, machine.size(1024, 20))
            for _ in range(2):  # the first warms the profiler up
                table = _kernels_of_replay(runner, host, machine.on_gpu)
            count, took = sum(kernel["count"] for kernel in table), sum(kernel["us"] for kernel in table)
            tables[batch] = {"kernels": count, "us": took, "table": table}
            first = ", ".join(
                f"{kernel['count']} x {kernel['name'][:40]} {kernel['us']:,.0f}" for kernel in table[:_SHOWN]
            )
            figures.append(f"batch {batch}: {count} kernels, {took:,.0f} µs: {first}")
    return {"batches": tables, "figure": "\n".join(figures)}


def _decodes(runner: ModelRunner, batch: int, context: int) -> HostBatch:
    step = _step(runner, [(context, 1)] * batch, 0, graphs=True)
    host = pack_step(
        step,
        list(range(batch)),
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
        vocab_size=runner.loaded.num_embeddings,
    )
    assert host is not None  # it computes tokens
    return host


@torch.inference_mode()
def _kernels_of_replay(runner: ModelRunner, host: HostBatch, on_gpu: bool) -> list[Figures]:
    """Returns the kernels of a replay (on a CPU torch's operations), those that take longest first."""
    from torch.autograd import DeviceType  # type: ignore[attr-defined]

    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as trace:
        if runner.accelerator.run(host, None) is None:
            raise RuntimeError(f"no graph has the size of a step of {host.num_tokens} decodes")
        if on_gpu:
            torch.cuda.synchronize()
    found: dict[str, Figures] = {}
    for event in trace.events() or []:
        if on_gpu and event.device_type != DeviceType.CUDA:
            continue
        kernel = found.setdefault(event.name, {"name": event.name, "count": 0, "us": 0.0})
        kernel["count"] += 1
        kernel["us"] += event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total
    return sorted(found.values(), key=lambda kernel: kernel["us"], reverse=True)
