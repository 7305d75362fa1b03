"""``roseplay bench page``: what serving the page costs the engine, as inter-token latency with and without it.

Two arms in turn, each in a process of its own with the same model, knobs, threads and requests: the engine alone,
and the page's server (``app.py``) whose ``/ui/delta`` a light client polls as a tab does. A browser is no part of
it: on a small machine it takes a good share of a core by itself, which is its own cost and not the server's.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

from roseplay.bench import flags, shapes
from roseplay.bench.runs import BenchmarkError
from roseplay.config import WORKERS, SamplingParams
from roseplay.traffic.environment import environment
from roseplay.traffic.metrics import percentile

POLL_S = 0.1
START_TIMEOUT_S = 300.0


def add_command(commands: Any) -> None:
    """Register with the parser of ``roseplay bench``."""
    parser = commands.add_parser(
        "page", help="ITL with the page served against the engine alone", description=__doc__.split("\n\n")[1]
    )
    flags.add_engine_flags(parser)
    group = parser.add_argument_group("page")
    group.add_argument("--worker", choices=WORKERS, default="thread", help="where the engine's loop runs")
    group.add_argument("--lanes", type=int, default=4, help="requests that stream at once")
    group.add_argument("--tabs", type=int, default=1, help="clients that poll, ten times a second each")
    group.add_argument("--max-new-tokens", type=int, default=512, help="tokens each request answers")
    flags.add_run_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run both arms in turn; print and return the medians of their ITL percentiles and the ratios run by run."""
    arms = {"headless": _run_headless, "page": _run_page}
    gaps: dict[str, list[dict[str, float]]] = {arm: [] for arm in arms}
    for number in range(args.warmup_runs + args.repeat_runs):
        for arm, play in arms.items():
            ordered = sorted(play(args))
            if number >= args.warmup_runs:
                gaps[arm].append({f"p{p}": percentile(ordered, p) or 0.0 for p in (50, 95, 99)})
    document: dict[str, Any] = {
        arm: {p: statistics.median(found[p] for found in runs) for p in ("p50", "p95", "p99")}
        for arm, runs in gaps.items()
    }
    pairs = zip(gaps["page"], gaps["headless"], strict=True)
    ratios = [page["p50"] / alone["p50"] for page, alone in pairs]
    document["ratio_p50"] = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    _print(args, document)
    return {**document, "environment": environment(threads=args.threads or 0, device=args.device)}


def _print(args: argparse.Namespace, document: dict[str, Any]) -> None:
    print(f"=== the page's cost: {args.lanes} lanes, {args.tabs} tabs, worker in a {args.worker} ===")
    for arm in ("headless", "page"):
        told = "/".join(f"{document[arm][p]:.2f}" for p in ("p50", "p95", "p99"))
        print(f"ITL {arm:<10} p50/p95/p99 {told} ms")
    ratio = document["ratio_p50"]
    print(f"ITL p50, page / headless: {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})")


# -- the engine alone


def _run_headless(args: argparse.Namespace) -> list[float]:
    """Every ITL in ms of one run in a child process."""
    child = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(_settings(args))],
        capture_output=True,
        text=True,
        timeout=args.time_limit_s,
    )
    if child.returncode != 0:
        raise BenchmarkError(f"the engine alone did not run: {child.stderr.strip().splitlines()[-1:]}")
    gaps: list[float] = json.loads(child.stdout.splitlines()[-1])
    return gaps


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": shapes.resolve(args.model),
        "lanes": args.lanes,
        "max_new_tokens": args.max_new_tokens,
        "engine": {
            "device": args.device,
            "dtype": args.dtype,
            "num_blocks": args.num_blocks,
            "threads": args.threads,
            "seed": args.seed,
            "random_weights": args.random_weights,
            "worker": args.worker,
        },
    }


def _headless_child(settings: dict[str, Any]) -> None:
    from roseplay.engine.client import Engine

    params = SamplingParams(max_new_tokens=settings["max_new_tokens"], ignore_eos=True)
    with Engine(settings["model"], **settings["engine"]) as engine:
        for _ in range(2):  # once to warm up, as the page's first burst is
            streams = [engine.submit([7 + lane] * 40, params) for lane in range(settings["lanes"])]
            gaps = [gap * 1000 for stream in streams for gap in stream.result().metrics.itl_s]
    print(json.dumps(gaps))


# -- the engine behind the page


def _run_page(args: argparse.Namespace) -> list[float]:
    """Every ITL in ms of one burst on a served page that is polled meanwhile."""
    command = [sys.executable, "-m", "roseplay", "play", "--port", "0"]
    settings = _settings(args)
    for name, value in {"model": settings["model"], **settings["engine"]}.items():
        if name == "random_weights":
            command += ["--random-weights"] if value else []
        elif value is not None:
            command += ["--" + name.replace("_", "-"), str(value)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        port = _wait_for_port(server)
        tabs = [_Tab(port) for _ in range(args.tabs)]
        for _ in range(2):
            gaps = _burst(port, args, tabs[0])
        for tab in tabs:
            tab.close()
        return gaps
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_for_port(server: subprocess.Popen[str]) -> int:
    assert server.stdout is not None and server.stderr is not None
    line = server.stdout.readline()  # the server ends by itself when it cannot start
    if " is live at " not in line:
        raise BenchmarkError(f"the page did not start: {line or server.stderr.read().strip()}")
    return int(line.split("http://")[1].split(" ")[0].rsplit(":", 1)[1])


class _Tab(threading.Thread):
    """Polls as a page does, on one kept connection, and keeps the replies unread until they are wanted."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.replies: list[bytes] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._closed = threading.Event()
        self.start()

    def run(self) -> None:
        since = 0
        while not self._closed.wait(POLL_S):
            self._connection.request("GET", f"/ui/delta?since={since}&tab=bench")
            body = self._connection.getresponse().read()
            since = json.loads(body)["next"]
            self.replies.append(body)

    def close(self) -> None:
        self._closed.set()
        self.join(30)
        self._connection.close()


def _burst(port: int, args: argparse.Namespace, tab: _Tab) -> list[float]:
    """Send as many requests as there are lanes, wait until all have ended, and read their ITLs from the polls."""
    tab.replies.clear()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"data": [args.lanes, "unique", args.max_new_tokens, args.seed, ""]})
    connection.request("POST", "/gradio_api/run/burst", body, {"Content-Type": "application/json"})
    reply = json.loads(connection.getresponse().read())
    if "data" not in reply:
        raise BenchmarkError(f"the page refused the burst: {reply}")
    wanted: set[int] = set(reply["data"][0]["ids"])
    ended: set[int] = set()
    deadline = time.monotonic() + args.time_limit_s
    seen: dict[int, dict[str, Any]] = {}
    while ended != wanted:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"the burst did not end within {args.time_limit_s:g} s")
        time.sleep(0.5)
        for reply in map(json.loads, list(tab.replies)):
            seen.update((frame["seq"], frame) for frame in reply["frames"])
        ended = {e[0] for f in seen.values() for e in f["requests"] if e[1] == "finished"} & wanted
    return [t[2] for f in seen.values() for t in f["tokens"] if t[0] in wanted and t[2] is not None]


if __name__ == "__main__":
    _headless_child(json.loads(sys.argv[1]))
