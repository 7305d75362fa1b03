"""``roseplay bench page``: what serving the page costs the engine, as inter-token latency with and without it.

Two arms in turn, each in a process of its own with the same model, knobs, threads, and requests of the same lengths:
the page's server (``app.py``), polled by a light client with the questions that a page asks, and the engine alone. A
browser is no part of it: on a small machine it takes a good share of a core by itself, which is its own cost and not
the server's (``roseplay bench browser`` tells it).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from roseplay.bench import flags
from roseplay.bench.polls import PollingTab
from roseplay.bench.runs import BenchmarkError
from roseplay.bench.served import ServedPage
from roseplay.config import SamplingParams
from roseplay.traffic.environment import environment
from roseplay.traffic.metrics import percentile

MAX_LANES = 8
_PERCENTS = (50, 95, 99)


@dataclass(frozen=True)
class Answers:
    """What one run gave: every ITL in ms, and the prompts' lengths in tokens."""

    itl_ms: list[float]
    prompt_tokens: list[int]

    def percentiles(self) -> dict[str, float]:
        ordered = sorted(self.itl_ms)
        return {f"p{p}": percentile(ordered, p) or 0.0 for p in _PERCENTS}


def add_command(commands: Any) -> None:
    """Register with the parser of ``roseplay bench``."""
    parser = commands.add_parser(
        "page", help="ITL with the page served against the engine alone", description=__doc__.split("\n\n")[1]
    )
    flags.add_engine_flags(parser)
    group = parser.add_argument_group("page")
    flags.add_worker_flag(group, "process")
    group.add_argument("--lanes", type=int, choices=range(1, MAX_LANES + 1), default=4, help="lanes that stream")
    group.add_argument("--others", type=int, default=0, help="requests of a burst that stream beside them")
    group.add_argument("--tabs", type=int, default=1, help="clients that poll, ten times a second each")
    group.add_argument("--max-new-tokens", type=int, default=512, help="tokens each request answers")
    flags.add_run_flags(parser, keep_cache=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run both arms in turn; print and return the medians of their ITL percentiles and the ratios run by run."""
    found: dict[str, list[dict[str, float]]] = {"page": [], "headless": []}
    lengths = _run_page(args).prompt_tokens  # not counted: it also tells how long the page's prompts are
    for number in range(args.repeat_runs):
        for arm in list(found) if number % 2 else list(found)[::-1]:
            answers = _run_page(args) if arm == "page" else _run_headless(args, lengths)
            found[arm].append(answers.percentiles())
    document: dict[str, Any] = {
        arm: {p: statistics.median(percentiles[p] for percentiles in runs) for p in runs[0]}
        for arm, runs in found.items()
    }
    for p in ("p50", "p99"):
        ratios = [page[p] / alone[p] for page, alone in zip(found["page"], found["headless"], strict=True)]
        document[f"ratio_{p}"] = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    _print(args, document)
    return {
        **document,
        "prompt_tokens": lengths,
        "environment": environment(threads=args.threads or 0, device=args.device),
    }


def _print(args: argparse.Namespace, document: dict[str, Any]) -> None:
    streams = f"{args.lanes} lanes" + (f" and {args.others} others" if args.others else "")
    print(f"=== the page's cost: {streams}, {args.tabs} tabs, worker in a {args.worker}, {args.repeat_runs} pairs ===")
    for arm in ("headless", "page"):
        told = "/".join(f"{document[arm][f'p{p}']:.2f}" for p in _PERCENTS)
        print(f"ITL {arm:<10} p50/p95/p99 {told} ms")
    for p in ("p50", "p99"):
        ratio = document[f"ratio_{p}"]
        print(f"ITL {p}, page / headless: {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})")


# -- the engine behind the page


def page_flags(args: argparse.Namespace) -> list[str]:
    """The engine's flags for ``roseplay play``."""
    given: list[str] = []
    for name, value in {**flags.engine_settings(args), "worker": args.worker}.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            given.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            given += [f"--{flag}", str(value)]
    return ["--model", args.model, *given]


def _run_page(args: argparse.Namespace) -> Answers:
    with ServedPage(page_flags(args)) as page:
        tabs = [PollingTab(page.port, f"benchmark-{number}") for number in range(args.tabs)]
        for _ in range(1 + args.warmup_runs):
            answers = _ask(page, tabs[0], args)
        for tab in tabs:
            tab.close()
    return answers


def _ask(page: ServedPage, tab: PollingTab, args: argparse.Namespace) -> Answers:
    """Fill the tab's lanes, and send a burst besides; wait until all have ended, and read their ITLs from the polls."""
    wanted: set[int] = set()
    page.call("new_chat", tab=tab.tab)  # else the prompts would grow from run to run
    for lane in range(1, args.lanes + 1):
        asked = page.call(
            "submit",
            prompt=f"{lane}: What does the scheduler do in each step?",
            lane=lane,
            tab=tab.tab,
            max_new_tokens=args.max_new_tokens,
            temperature=0,
            ignore_eos=True,
        )
        wanted.update(asked["ids"])
    if args.others:
        burst = page.call("burst", size=args.others, kind="unique", max_new_tokens=args.max_new_tokens, seed=args.seed)
        wanted.update(burst["ids"])
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
    gaps = [t[2] for frame in frames for t in frame["tokens"] if t[0] in wanted and t[2] is not None]
    return Answers(gaps, lengths)


# -- the engine alone


def _run_headless(args: argparse.Namespace, lengths: list[int]) -> Answers:
    """The same lengths on an engine of its own, in a child process."""
    settings = {
        "model": args.model,
        "lengths": lengths,
        "max_new_tokens": args.max_new_tokens,
        "runs": 1 + args.warmup_runs,
        "engine": {**flags.engine_settings(args), "worker": args.worker},
    }
    child = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=args.time_limit_s,
    )
    if child.returncode != 0:
        raise BenchmarkError(f"the engine alone did not run: {child.stderr.strip().splitlines()[-1:]}")
    return Answers(json.loads(child.stdout.splitlines()[-1]), lengths)


def _headless_child(settings: dict[str, Any]) -> None:
    from roseplay.engine.client import Engine

    params = SamplingParams(max_new_tokens=settings["max_new_tokens"], ignore_eos=True)
    with Engine(settings["model"], **settings["engine"]) as engine:
        for _ in range(settings["runs"]):
            streams = [
                engine.submit([7 + number] * length, params) for number, length in enumerate(settings["lengths"])
            ]
            gaps = [gap * 1000 for stream in streams for gap in stream.result().metrics.itl_s]
    print(json.dumps(gaps))


if __name__ == "__main__":
    _headless_child(json.loads(sys.argv[1]))
