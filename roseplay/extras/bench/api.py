"""``roseplay bench api``: what serving many streams costs in addition to computing them.

``roseplay serve``, in a process of its own, handles many concurrent streams, then a burst larger than its queue. The
cost of the API is the processor time of the serving thread; the cost of the engine is that of its worker process. Both
are read from ``/proc``, which requires Linux. The client runs on the same machine.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from roseplay.arguments import within
from roseplay.extras.bench import flags
from roseplay.extras.bench.page import page_flags
from roseplay.extras.bench.runs import BenchmarkError
from roseplay.extras.bench.served_api import ServedApi


def add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add_engine_flags(parser)
    group = parser.add_argument_group("load")
    flags.add_worker_flag(group, "process")
    flags.add(group, "--streams", 256, "concurrent streams")
    flags.add(group, "--burst", 1000, "requests in the burst", type=within(0, flags.MOST))
    flags.add(group, "--queue", 256, "requests that may wait during the burst")
    flags.add(group, "--max-new-tokens", 200, "tokens in each stream")
    flags.add_run_flags(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run both loads; print and return the medians of the runs."""
    if not Path("/proc/self/task").is_dir():
        raise BenchmarkError("processor times of threads are read from /proc, which this system does not have")

    def load(server: ServedApi, count: int) -> dict[str, Any]:
        prompts = [f"Tell story {number}" for number in range(count)]
        return server.load(prompts, args.max_new_tokens, args.time_limit_s)

    with ServedApi([*page_flags(args), "--max-waiting", "100000"]) as server:
        runs = [load(server, args.streams) for _ in range(args.warmup_runs + args.repeat_runs)]
    with ServedApi([*page_flags(args), "--max-waiting", str(args.queue)]) as server:
        bursts = [load(server, args.burst) for _ in range(args.repeat_runs)] if args.burst else []
    runs = runs[args.warmup_runs :]
    counts = ("statuses", "ended", "refused_within_s")
    document = {
        "streams": {name: statistics.median(run[name] for run in runs) for name in runs[0] if name not in counts},
        "statuses": runs[-1]["statuses"],
        "burst": [{name: burst[name] for name in counts} for burst in bursts],
    }
    _print(args, document)
    return document


def _print(args: argparse.Namespace, document: dict[str, Any]) -> None:
    streams = document["streams"]
    print(f"=== {args.streams} streams of {args.max_new_tokens} tokens, {args.repeat_runs} runs ===")
    print(f"answered {document['statuses']}, {streams['tokens_per_s']:,.0f} tokens/s")
    share = streams["api_us"] / streams["engine_us"]
    print(f"CPU per token: API {streams['api_us']:.0f} us, engine {streams['engine_us']:.0f} us: {share:.0%}")
    gaps = "/".join(f"{streams[f'itl_p{p}_ms']:.1f}" for p in (50, 95, 99))
    print(f"ITL p50/p95/p99 {gaps} ms, p99 / p50 {streams['itl_p99_ms'] / streams['itl_p50_ms']:.1f}")
    for burst in document["burst"]:
        said = f"refused within {burst['refused_within_s']:.2f} s" if burst["refused_within_s"] else "none refused"
        print(
            f"burst of {args.burst} against a queue of {args.queue}: {burst['statuses']}, {burst['ended']} ended, {said}"
        )
