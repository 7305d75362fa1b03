"""``roseplay bench streaming``: latencies of a stream of requests: submit, queue, TTFT, TPOT, ITL, E2E.

Sends requests, streams their answers, and reports how long clients waited at each stage.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from roseplay.core.info import EngineInfo
from roseplay.extras.bench import flags
from roseplay.extras.bench.runs import play_once
from roseplay.traffic.environment import environment
from roseplay.traffic.metrics import Metrics
from roseplay.traffic.prompts import prompt_source

_LATENCIES = (
    ("submit latency", "submit", "ms"),
    ("queue", "queue", "ms"),
    ("TTFT", "ttft", "ms"),
    ("TTFT from arrival", "ttft_from_arrival", "ms"),
    ("TPOT", "tpot", "ms/token"),
    ("ITL", "itl", "ms"),
    ("E2E", "e2e", "ms"),
)
_FIGURES = (
    "submit_wall_s", "output_tokens_per_s", "prompt_tokens", "completion_tokens", "requests", "ended_early",
    "cached_tokens", "shared_tokens", "preemptions", "wall_s",
)  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add_traffic_flags(parser)
    flags.add_knob_flags(parser)
    flags.add_engine_flags(parser)
    flags.add_run_flags(parser, keep_cache=True)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Play the workload, print the figures of the median run and return them."""
    with flags.open_engine(args, flags.knobs(args)) as engine:
        source = prompt_source(engine, args.prompt, seed=args.seed)
        workload, how = flags.workload(args, source), {"keep_cache": args.keep_cache, "time_limit_s": args.time_limit_s}
        runs = [play_once(engine, workload, **how) for _ in range(args.warmup_runs + args.repeat_runs)]
        runs = runs[args.warmup_runs :]
        info = engine.info
        # Of an even number of runs, the slower of the middle two.
        median = sorted(runs, key=lambda run: run.output_tokens_per_s)[(len(runs) - 1) // 2]
        _print(args, info, runs, median)
        return {
            **{name: getattr(median, name) for name in _FIGURES},
            **median.latencies_ms(),
            "knobs": engine.knobs.to_dict(),
            "environment": environment(threads=info.threads, device=info.device),
            "model": {**asdict(info), "random_weights": args.random_weights},
            "runs": [
                {name: getattr(run, name) for name in ("output_tokens_per_s", "submit_wall_s", "wall_s")}
                for run in runs
            ],
        }


def _print(args: argparse.Namespace, info: EngineInfo, runs: list[Metrics], median: Metrics) -> None:
    weights = ", random weights" if args.random_weights else ""
    counts = ((median.cached_tokens, "cached"), (median.shared_tokens, "shared within a step"))
    saved = ", ".join(f"{count} {what}" for count, what in counts if count)
    rates = [run.output_tokens_per_s for run in runs]
    spread = f" (median of {len(runs)} runs, {min(rates):.2f} to {max(rates):.2f})" if len(runs) > 1 else ""
    print("=== streaming benchmark ===")
    print(f"model           {info.model} ({info.architecture}, {info.num_parameters / 1e6:.1f}M parameters{weights})")
    print(f"device          {info.device}, {info.dtype}, {info.threads} threads, attention {info.attention}")
    print(f"requests        {median.requests}")
    print(f"prompt tokens   {median.prompt_tokens}{f' ({saved})' if saved else ''}")
    print(f"output tokens   {median.completion_tokens}")
    print(f"submit wall     {median.submit_wall_s:.6f} s")
    for title, name, unit in _LATENCIES:
        values = asdict(getattr(median, name)).values()
        figures = "/".join("-" if value is None else f"{value:.2f}" for value in values)
        print(f"{title:<15} p50/p95/p99 {figures} {unit}")
    print(f"throughput      {median.output_tokens_per_s:.2f} tokens/s{spread}")
    if median.ended_early:
        print(
            f"{median.ended_early} of {args.num_requests} answers ended before {args.max_new_tokens} tokens, at an"
            " end-of-sequence token; --no-stop-on-eos keeps going"
        )
