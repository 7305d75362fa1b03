"""``roseplay bench page``: ITL of an engine that serves the page, compared with the engine alone.

Measures two arms in turn, each in its own process with the same model, knobs, threads and request lengths: the page's
server (``roseplay play``), polled by a light client in the way that a page does, and the engine alone. No browser takes
part: on a small machine it uses a good share of a core, which is its own cost and not the server's (``roseplay bench
browser`` measures that).
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import closing
from typing import Any

from roseplay.arguments import within
from roseplay.config import Knobs
from roseplay.extras.bench import flags
from roseplay.extras.bench.compare import Peer
from roseplay.extras.bench.peers import Contest
from roseplay.extras.bench.runs import BenchmarkError
from roseplay.extras.bench.served import PollingTab, ServedPage
from roseplay.traffic.metrics import percentile

MAX_LANES = 8
_PERCENTS = (50, 95, 99)


def add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add_engine_flags(parser)
    group = parser.add_argument_group("page")
    add_page_flags(group, others=0, tabs="clients, each of which polls ten times a second")
    flags.add(group, "--max-new-tokens", 512, "tokens in each answer")
    flags.add_run_flags(parser)


def add_page_flags(group: Any, *, others: int, tabs: str) -> None:
    flags.add_worker_flag(group, "process")
    flags.add(group, "--lanes", 4, "lanes in which answers stream", type=int, choices=range(1, MAX_LANES + 1))
    flags.add(group, "--others", others, "requests of a burst that stream beside the lanes", type=within(0, flags.MOST))
    flags.add(group, "--tabs", 1, tabs)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run both arms in turn; print and return the medians of their ITL percentiles and the ratios run by run."""
    arms: dict[str, list[dict[str, float]]] = {"page": [], "headless": []}
    _, lengths = _run_page(args)  # not counted: determines the lengths of the page's prompts
    for number in range(args.repeat_runs):
        for arm in list(arms) if number % 2 else list(arms)[::-1]:
            gaps = _run_page(args)[0] if arm == "page" else _run_headless(args, lengths)
            arms[arm].append({f"p{p}": percentile(sorted(gaps), p) or 0.0 for p in _PERCENTS})
    document: dict[str, Any] = {
        arm: {p: statistics.median(percentiles[p] for percentiles in runs) for p in runs[0]}
        for arm, runs in arms.items()
    }
    for p in ("p50", "p99"):
        ratios = [page[p] / alone[p] for page, alone in zip(arms["page"], arms["headless"], strict=True)]
        document[f"ratio_{p}"] = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    _print(args, document)
    return {**document, "prompt_tokens": lengths}


def _print(args: argparse.Namespace, document: dict[str, Any]) -> None:
    streams = f"{args.lanes} lanes" + (f" and {args.others} others" if args.others else "")
    print(f"=== the page's cost: {streams}, {args.tabs} tabs, worker in a {args.worker}, {args.repeat_runs} pairs ===")
    for arm in ("headless", "page"):
        figures = "/".join(f"{document[arm][f'p{p}']:.2f}" for p in _PERCENTS)
        print(f"ITL {arm:<10} p50/p95/p99 {figures} ms")
    for p in ("p50", "p99"):
        ratio = document[f"ratio_{p}"]
        print(f"ITL {p}, page / headless: {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})")


def page_flags(args: argparse.Namespace) -> list[str]:
    """Returns the engine's flags for ``roseplay play``."""
    arguments: list[str] = []
    for name, value in {**flags.engine_settings(args), "worker": args.worker}.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            arguments += [f"--{flag}", str(value)]
    return ["--model", args.model, *arguments]


def _run_page(args: argparse.Namespace) -> tuple[list[float], list[int]]:
    """Returns every ITL in ms of the last run, and the prompts' lengths in tokens."""
    with ServedPage(page_flags(args)) as page:
        tabs = [PollingTab(page.port, f"benchmark-{number}") for number in range(args.tabs)]
        for _ in range(1 + args.warmup_runs):
            answers = _ask(page, tabs[0], args)
        for tab in tabs:
            tab.close()
    return answers


def _ask(page: ServedPage, tab: PollingTab, args: argparse.Namespace) -> tuple[list[float], list[int]]:
    """Send the load and wait until all requests have ended; returns their ITLs and prompt lengths from the polls."""
    wanted = page.load(tab.tab, args.lanes, args.others, args.max_new_tokens, args.seed)
    deadline = time.monotonic() + args.time_limit_s
    while True:
        time.sleep(0.5)
        frames = tab.frames()
        events = [event for frame in frames for event in frame["requests"] if event[0] in wanted]
        if {event[0] for event in events if event[1] == "finished"} == wanted:
            break
        if time.monotonic() > deadline:
            raise BenchmarkError(f"the answers did not end within {args.time_limit_s:g} s")
    lengths = [event[3]["prompt_tokens"] for event in events if event[1] == "submitted"]
    return [t[2] for frame in frames for t in frame["tokens"] if t[0] in wanted and t[2] is not None], lengths


def _run_headless(args: argparse.Namespace, lengths: list[int]) -> list[float]:
    """Returns the ITLs in ms of prompts of these lengths on an engine alone, in its own process."""
    contest = Contest(
        model=args.model,
        config={**flags.engine_settings(args), "worker": args.worker},
        prompts=[[7 + number] * length for number, length in enumerate(lengths)],
        arrivals_s=[0.0] * len(lengths),
        max_new_tokens=args.max_new_tokens,
        max_batch_size=Knobs().max_batch_size,
        keep_cache=True,  # as the page does
    )
    with closing(Peer("roseplay", contest, args.time_limit_s)) as engine:
        runs = [engine.run() for _ in range(1 + args.warmup_runs)]
    itl_ms: list[float] = runs[-1]["itl_ms"]
    return itl_ms
