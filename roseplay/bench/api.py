"""``roseplay bench api``: what serving many streams costs beside computing them.

``roseplay serve`` in a process of its own answers so many streams at once, then a burst that is larger than its queue. The cost of
the API is the processor time of the thread that serves; the engine's is that of its worker process. Both are read from ``/proc``,
so that this needs Linux. The client computes on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roseplay.bench import flags
from roseplay.bench.page import page_flags
from roseplay.bench.runs import BenchmarkError
from roseplay.traffic.environment import environment
from roseplay.traffic.metrics import percentile

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_CONNECT_WITHIN_S = 60.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add_engine_flags(parser)
    group = parser.add_argument_group("load")
    flags.add_worker_flag(group, "process")
    flags.add(group, "--streams", 256, "streams at once")
    flags.add(group, "--burst", 1000, "requests of the burst", type=flags.at_least(0))
    flags.add(group, "--queue", 256, "requests that may wait in the burst")
    flags.add(group, "--max-new-tokens", 200, "tokens each stream answers")
    flags.add_run_flags(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run both loads; print and return the medians of the runs."""
    if not Path("/proc/self/task").is_dir():
        raise BenchmarkError("processor times of threads are read from /proc, which this system does not have")
    with _Served([*page_flags(args), "--max-waiting", "100000"]) as server:
        runs = [server.load(args.streams, args) for _ in range(args.warmup_runs + args.repeat_runs)]
    with _Served([*page_flags(args), "--max-waiting", str(args.queue)]) as server:
        bursts = [server.load(args.burst, args) for _ in range(args.repeat_runs)] if args.burst else []
    runs = runs[args.warmup_runs :]
    counts = ("statuses", "ended", "refused_within_s")
    document = {
        "streams": {name: statistics.median(run[name] for run in runs) for name in runs[0] if name not in counts},
        "statuses": runs[-1]["statuses"],
        "burst": [{name: burst[name] for name in counts} for burst in bursts],
        "environment": environment(threads=args.threads or 0, device=args.device),
    }
    _print(args, document)
    return document


def _print(args: argparse.Namespace, document: dict[str, Any]) -> None:
    found = document["streams"]
    print(f"=== {args.streams} streams of {args.max_new_tokens} tokens, {args.repeat_runs} runs ===")
    print(f"answered {document['statuses']}, {found['tokens_per_s']:,.0f} tokens/s")
    share = found["api_us"] / found["engine_us"]
    print(f"CPU per token: API {found['api_us']:.0f} us, engine {found['engine_us']:.0f} us: {share:.0%}")
    gaps = "/".join(f"{found[f'itl_p{p}_ms']:.1f}" for p in (50, 95, 99))
    print(f"ITL p50/p95/p99 {gaps} ms, p99 / p50 {found['itl_p99_ms'] / found['itl_p50_ms']:.1f}")
    for burst in document["burst"]:
        said = f"refused within {burst['refused_within_s']:.2f} s" if burst["refused_within_s"] else "none refused"
        print(
            f"burst of {args.burst} against a queue of {args.queue}: {burst['statuses']}, {burst['ended']} ended, {said}"
        )


@dataclass
class _Seen:
    """What the client sees of one request."""

    status: int = 0
    status_s: float = 0.0
    times: list[float] = field(default_factory=list)
    ended: bool = False


class _Served:
    """``roseplay serve`` at a free port of this machine."""

    def __init__(self, given: list[str]) -> None:
        command = [sys.executable, "-m", "roseplay", "serve", "--port", "0", "--grace", "0", *given]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        if " is live at " not in line:
            raise BenchmarkError(f"the server did not start: {self._process.stderr.read().strip()}")
        self._port = int(line.split(" is live at http://")[1].split("/")[0].rsplit(":", 1)[1])
        self._model = line.rsplit("(", 1)[1].split(",")[0]

    def __enter__(self) -> _Served:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def load(self, count: int, args: argparse.Namespace) -> dict[str, Any]:
        """Send so many requests at once and read all answers."""
        before, began = self._cpu_s(), time.perf_counter()
        seen = asyncio.run(asyncio.wait_for(self._all(count, args.max_new_tokens), args.time_limit_s))
        took = time.perf_counter() - began
        api_s, engine_s = (now - then for now, then in zip(self._cpu_s(), before, strict=True))
        gaps = sorted(b - a for one in seen for a, b in zip(one.times, one.times[1:], strict=False))
        tokens = sum(one.ended for one in seen) * args.max_new_tokens
        if not tokens:
            raise BenchmarkError(f"no request was answered: {dict(Counter(one.status for one in seen))}")
        refused = [one.status_s for one in seen if one.status == 429]
        return {
            "statuses": {str(status): number for status, number in Counter(one.status for one in seen).items()},
            "ended": sum(one.ended for one in seen),
            "refused_within_s": max(refused, default=None),
            "tokens_per_s": tokens / took,
            "api_us": api_s / tokens * 1e6,
            "engine_us": engine_s / tokens * 1e6,
            **{f"itl_p{p}_ms": 1e3 * (percentile(gaps, p) or 0.0) for p in (50, 95, 99)},
        }

    def _cpu_s(self) -> tuple[float, float]:
        """Processor seconds of the serving thread, and of the worker."""
        pid = self._process.pid
        listed = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True).stdout
        children = [Path(f"/proc/{child}/stat") for child in listed.split()]
        return _ticks(Path(f"/proc/{pid}/task/{pid}/stat")), sum(_ticks(child) for child in children if child.exists())

    async def _all(self, count: int, most: int) -> list[_Seen]:
        return await asyncio.gather(*(self._one(number, most) for number in range(count)))

    async def _one(self, number: int, most: int) -> _Seen:
        """A client that does as little as possible, since it takes processor time from the server."""
        asked = {"model": self._model, "prompt": f"Tell story {number}", "max_tokens": most, "ignore_eos": True}
        body = json.dumps({**asked, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        seen, began = _Seen(), time.perf_counter()
        connecting = asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = await asyncio.wait_for(connecting, _CONNECT_WITHIN_S)
        writer.write(head.encode() + body)
        seen.status = int((await reader.readuntil(b"\r\n\r\n")).split()[1])
        seen.status_s = time.perf_counter() - began
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                seen.times.append(time.perf_counter())
            seen.ended = seen.ended or line.startswith(b"data: [DONE]")
        writer.close()
        return seen


def _ticks(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
