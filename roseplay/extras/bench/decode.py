"""``roseplay bench decode``: the cost of a decode step compared with the bytes it moves.

A batch of requests with prompts of one length decodes together. Each step reads every weight and every cached key and
value once, and reads and writes every recurrent state. The time that this takes at the bandwidth measured in the same
run is the least that a step can cost. With several batch sizes or contexts, one engine decodes all combinations in turn:
the cost should rise with the bytes, without sudden jumps.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseplay.arguments import list_of_integers, within
from roseplay.config import Knobs, SamplingParams
from roseplay.extras.bench import flags
from roseplay.extras.bench.runs import BenchmarkError, random_prompts
from roseplay.formats.report_page import COLOURS, charts, figure, heading, report_page
from roseplay.model.ceilings import read_bandwidth
from roseplay.traffic.environment import environment
from roseplay.traffic.metrics import Percentiles

if TYPE_CHECKING:
    from roseplay.core.info import EngineInfo
    from roseplay.engine.client import Engine
    from roseplay.engine.records import StepRecord

STAGES = ("schedule", "prepare", "forward", "sample", "publish")
_PROMPTS_SEED = 5
_SPARE_BLOCKS = 2
_SETTLING_STEPS = 2  # steps after the last prompt that are not measured


@dataclass(frozen=True)
class DecodeSteps:
    """Consecutive steps that decode one token for each request of a full batch."""

    period_ms: list[float]  # from the start of each step to the start of the next
    # Median of each stage; ``publish`` is the rest of the period: recording and publishing tokens.
    stages_ms: dict[str, float]
    prefill_tokens_per_s: float  # prompt tokens divided by the time of the steps that computed only prompts
    device_ms: list[float]  # the device's time in each step
    replayed: float  # share of the steps that were replayed as graphs


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("decode")
    sizes = {"type": list_of_integers, "metavar": "N,N,..."}
    flags.add(group, "--batch-size", "8", "requests that decode together", **sizes)
    flags.add(group, "--context", "64", "tokens in each prompt", **sizes)
    flags.add(group, "--html", None, "draw the steps in this HTML file", type=flags.writable_file, metavar="FILE")
    flags.add(group, "--max-new-tokens", 64, "tokens each request decodes", type=within(8, flags.MOST))
    flags.add_worker_flag(group, "thread")
    flags.add_engine_flags(parser)
    flags.add_run_flags(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Decode, print the figures and return them; raises ``ValueError`` and ``BenchmarkError``."""
    info, cells = measure(args, list(itertools.product(args.batch_size, args.context)), worker=args.worker)
    if len(cells) == 1:
        _print(info, cells[0])
    else:
        _print_grid(info, cells)
    if args.html:
        draw(info, cells, args.html)
    document = cells[0] if len(cells) == 1 else {"model": info.model, "dtype": info.dtype, "cells": cells}
    return {**document, "environment": environment(threads=info.threads, device=info.device)}


def measure(
    args: argparse.Namespace, cells: list[tuple[int, int]], **settings: Any
) -> tuple[EngineInfo, list[dict[str, Any]]]:
    """Returns the engine's properties and the figures of each cell, a batch size and a context.

    One engine decodes all cells in turn, each time in a different random order, so that a busy moment of the machine
    does not always affect the same one. ``settings`` are fields of ``EngineConfig``, which override the flags.

    Raises:
        ValueError: a flag's value is bad, or the engine cannot start.
        BenchmarkError: a request failed, or too few steps decoded the whole batch.
    """
    most, longest = (max(sizes) for sizes in zip(*cells, strict=True))
    if args.num_blocks is None:
        blocks = -(-(longest + args.max_new_tokens) // flags.engine_config(args).block_size)
        args.num_blocks = 1 + blocks * most + _SPARE_BLOCKS
    found: dict[tuple[int, int], list[DecodeSteps]] = {cell: [] for cell in cells}
    order = random.Random(args.seed)
    with flags.open_engine(args, Knobs(max_batch_size=most, prefix_cache=False), **settings) as engine:
        info = engine.info
        before = read_bandwidth(info.device)
        for number in range(args.warmup_runs + args.repeat_runs):
            for cell in order.sample(cells, len(cells)):
                steps = decode_batch(engine, *cell, args.max_new_tokens, time_limit_s=args.time_limit_s)
                if number >= args.warmup_runs:
                    found[cell].append(steps)
        bandwidth = statistics.fmean((before, read_bandwidth(info.device)))
    return info, [_figures(info, steps, *cell, args.max_new_tokens, bandwidth) for cell, steps in found.items()]


def bytes_per_step(info: EngineInfo, batch: int, context: int, new_tokens: int) -> int:
    """Returns the bytes that a decode step moves halfway through the answers: weights, keys and values, which are read,
    and recurrent states, which are read and written."""
    cached = batch * (context + new_tokens / 2) * info.kv_bytes_per_token
    return info.weight_bytes + int(cached) + 2 * batch * info.state_bytes


def _figures(
    info: EngineInfo, found: list[DecodeSteps], batch: int, context: int, new_tokens: int, bandwidth: float
) -> dict[str, Any]:
    periods = [period for steps in found for period in steps.period_ms]
    step_ms = asdict(Percentiles.of_seconds(period / 1e3 for period in periods))
    step_bytes = bytes_per_step(info, batch, context, new_tokens)
    return {
        "output_tokens_per_s": batch / step_ms["p50"] * 1000,
        "tpot_ms": step_ms["p50"],
        "step_ms": step_ms,
        "device_ms": statistics.median(took for steps in found for took in steps.device_ms),
        "replayed": statistics.fmean(steps.replayed for steps in found),
        "stages_ms": {stage: statistics.median(steps.stages_ms[stage] for steps in found) for stage in STAGES},
        "prefill_tokens_per_s": statistics.median(steps.prefill_tokens_per_s for steps in found),
        "bytes_per_step": step_bytes,
        "weight_bytes": info.weight_bytes,
        "read_bandwidth_gb_s": bandwidth / 1e9,
        "bandwidth_fraction": step_bytes / (step_ms["p50"] / 1000) / bandwidth,
        "batch": batch,
        "context": context,
        "new_tokens": new_tokens,
        "dtype": info.dtype,
        "steps": len(periods),
    }


def decode_batch(
    engine: Engine, batch_size: int, context: int, max_new_tokens: int, *, time_limit_s: float = 600.0
) -> DecodeSteps:
    """Decodes one batch to its end; raises ``BenchmarkError`` if a request fails or no two steps in a row are full."""
    engine.clear_cache()
    reader = engine.telemetry.reader()
    params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
    prompts = random_prompts(engine.info.vocab_size, [context] * batch_size, _PROMPTS_SEED)
    engine.pause()  # so that all begin in one step and decode together to the end
    streams = [engine.submit(prompt, params) for prompt in prompts]
    engine.resume()
    for stream in streams:
        result = stream.result(timeout=time_limit_s)
        if result.error:
            raise BenchmarkError(f"a request failed: {result.error}")
    return _steady(reader.steps(), batch_size)


def _steady(records: list[StepRecord], batch_size: int) -> DecodeSteps:
    full = [record for record in records if record.decode_tokens == batch_size and not record.prompt_tokens]
    pairs = list(itertools.pairwise(full[_SETTLING_STEPS:]))
    pairs = [(one, following) for one, following in pairs if following.step_id == one.step_id + 1]
    if not pairs:
        raise BenchmarkError("no two steps in a row decoded the whole batch: use more --max-new-tokens")
    periods = [(following.start_ns - one.start_ns) / 1e6 for one, following in pairs]
    stages = {
        stage: [getattr(one, f"{stage}_ns") / 1e6 for one, _ in pairs]
        for stage in ("schedule", "prepare", "forward", "sample")
    }
    known = zip(*stages.values(), strict=True)
    stages["publish"] = [period - sum(parts) for period, parts in zip(periods, known, strict=True)]
    # Like those of decodes, until the next step begins: the first tokens of many requests take a while to publish.
    prefills = [pair for pair in itertools.pairwise(records) if pair[0].prompt_tokens and not pair[0].decode_tokens]
    prefill_s = sum(following.start_ns - record.start_ns for record, following in prefills) / 1e9
    return DecodeSteps(
        periods,
        {stage: statistics.median(took) for stage, took in stages.items()},
        sum(record.prompt_tokens for record, _ in prefills) / max(prefill_s, 1e-9),
        [one.device_ns / 1e6 for one, _ in pairs],
        sum(bool(one.replayed) for one, _ in pairs) / len(pairs),
    )


def _print(info: Any, document: dict[str, Any]) -> None:
    step, stages = document["step_ms"], document["stages_ms"]
    print("=== decode benchmark ===")
    print(f"model           {info.model}, {info.device}, {info.dtype}, {info.threads} threads")
    print(
        f"batch, context  {document['batch']} requests, {document['context']} prompt tokens, {document['steps']} steps"
    )
    print(f"prefill         {document['prefill_tokens_per_s']:.0f} tokens/s")
    print(f"throughput      {document['output_tokens_per_s']:.1f} tokens/s")
    print(f"TPOT            p50/p95/p99 {step['p50']:.2f}/{step['p95']:.2f}/{step['p99']:.2f} ms")
    print("step            " + ", ".join(f"{stage} {stages[stage]:.2f}" for stage in STAGES) + " ms")
    print(
        f"bytes           {document['bytes_per_step'] / 1e6:.1f} MB a step, {document['weight_bytes'] / 1e6:.1f} MB of them weights\n"
        f"bandwidth       {document['bandwidth_fraction']:.0%} of the {document['read_bandwidth_gb_s']:.1f} GB/s that one pass of reading reaches"
    )


def _print_grid(info: EngineInfo, cells: list[dict[str, Any]]) -> None:
    print(f"=== decode steps: {info.model}, {info.dtype} ===")
    print("ms a step (share of the read bandwidth)")
    contexts = dict.fromkeys(cell["context"] for cell in cells)
    print("batch  " + "".join(f"{'context ' + str(context):>16}" for context in contexts))
    for batch, row in itertools.groupby(cells, key=lambda cell: cell["batch"]):
        words = (f"{cell['step_ms']['p50']:.1f} ({cell['bandwidth_fraction']:.0%})" for cell in row)
        print(f"{batch:<7}" + "".join(f"{word:>16}" for word in words))


def draw(info: EngineInfo, cells: list[dict[str, Any]], file: Path) -> None:
    """Write a page with two charts, of ms a step and the share of the bandwidth, with a line for each context."""
    title = f"{Path(info.model).name}, {info.dtype}: a decode step"
    batches, contexts = (sorted({cell[of] for cell in cells}) for of in ("batch", "context"))
    share = "bytes of weights and KV over time, as a share of the read bandwidth"
    drawn = {"ms a step": lambda cell: cell["step_ms"]["p50"], share: lambda cell: cell["bandwidth_fraction"]}
    figures = []
    for of in drawn.values():
        chart = figure("requests", "")
        chart.update_xaxes(type="log", tickvals=batches, ticktext=[str(batch) for batch in batches])
        for number, context in enumerate(contexts):
            line = [cell for cell in cells if cell["context"] == context]
            style = {"color": COLOURS[f"c{number % 8}"]}
            x, y = [cell["batch"] for cell in line], [of(cell) for cell in line]
            chart.add_scatter(x=x, y=y, name=f"context {context:,}", mode="lines+markers", line=style)
        figures.append(chart)
    figures[0].update_yaxes(type="log", rangemode=None)
    figures[1].update_yaxes(tickformat=".0%")
    parts = [part for name, chart in zip(drawn, charts(figures), strict=True) for part in (heading(name), chart)]
    file.write_text(report_page(title, [f"<h1>{escape(title)}</h1>", *parts]), encoding="utf-8")
