"""``roseplay bench browser``: the page in a real browser under load.

Runs the page's server and a headless Chromium on the same machine under the load of many streams. Measures the time
from token to screen, frames and bytes per second, the processor time of the server and of the browser, the first visit,
and memory over time. Needs Playwright (the extra ``test``) and a Chromium.

A GPU's rates need no GPU: ``--run-as h200 --model llama-3.2-1b --others 60 --rate 10000`` has a simulated one stream.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from typing import Any

from roseplay.config import Knobs
from roseplay.extras.bench import flags, probe
from roseplay.extras.bench.page import add_page_flags, page_flags
from roseplay.extras.bench.runs import BenchmarkError
from roseplay.extras.bench.served import ServedPage

_CHROMIUMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
_NUM_BLOCKS = 4097  # of this machine's engine; a simulated one has those that fit on its GPU
_READY_MS = 60_000
_IDLE_WITHIN_MS = 120_000
_SETTLE_S = 6.0  # from the first tokens to the first figure
_LOOK_S, _NEAR = 1.0, 0.03  # how often the rate is checked, and the relative error that is tolerated
_TOKENS = "() => [Rose.store.tokens.end, performance.now()]"
_WARM_UP_TOKENS = 64
_SAMPLE_S = 30.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add_engine_flags(parser)
    group = parser.add_argument_group("browser")
    add_page_flags(group, others=28, tabs="pages open at once; the first is measured")
    flags.add(group, "--chromium", None, "path of a browser to use instead of the system's or Playwright's", type=str)
    flags.add(group, "--rate", 1500, "tokens/s to which slow motion limits the engine")
    flags.add(group, "--seconds", 15.0, "how long to measure")
    flags.add(group, "--soak-s", 0.0, "afterwards, keep up the load for this long and sample memory, to find leaks")
    flags.add_json_flag(group)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, print and return the figures."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise ValueError("Playwright is not installed: pip install 'roseplay[test]'") from None
    if args.num_blocks is None and not args.run_as:
        args.num_blocks = _NUM_BLOCKS
    with ServedPage(page_flags(args)) as served, sync_playwright() as playwright:
        path = args.chromium or next(filter(None, map(shutil.which, _CHROMIUMS)), None)
        browser = playwright.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        try:
            document = _Visit(args, served, browser).measure()
        finally:
            browser.close()
    _print(document)
    return document


class _Visit:
    """A browser that visits one server."""

    def __init__(self, args: argparse.Namespace, served: ServedPage, browser: Any) -> None:
        self._args, self._served = args, served
        self._slow = 1.0
        self._context = browser.new_context(viewport={"width": 1440, "height": 900})
        self._context.add_init_script(probe.SCRIPT)

    def measure(self) -> dict[str, Any]:
        first, page = self._open()
        again, second = self._open()
        second.close()
        document: dict[str, Any] = {"first_visit": first, "second_visit": again}
        pages = [page, *(self._open()[1] for _ in range(self._args.tabs - 1))]
        page.bring_to_front()  # pages in the background draw only once a second
        self._load(page, _WARM_UP_TOKENS)  # so that nothing is compiled and no memory is allocated later
        for condition in ("> 0", "=== 0"):  # it has requests, and then none left to answer
            page.wait_for_function(f"() => Rose.store.open.size {condition}", timeout=_IDLE_WITHIN_MS)
        self._load(page)
        self._hold_to_rate(page, _SETTLE_S)
        for tab in pages:
            tab.evaluate("() => roseProbe.start()")
        session = self._context.new_cdp_session(page)
        session.send("Performance.enable")
        before, began = self._cpu_s(session), time.perf_counter()
        slow = self._hold_to_rate(page, self._args.seconds)
        seconds = time.perf_counter() - began
        document["cores"] = {part: (now - before[part]) / seconds for part, now in self._cpu_s(session).items()}
        document["load_average"] = os.getloadavg()[0]
        read = [tab.evaluate("() => roseProbe.read()") for tab in pages]
        document.update(probe.figures(read[0]), slow_motion=slow, tabs=self._args.tabs)
        document["polls_per_s_by_tab"] = [tab["polls"] / tab["seconds"] for tab in read]
        document["memory"] = self._soak(page) if self._args.soak_s else []
        return document

    def _cpu_s(self, session: Any) -> dict[str, float]:
        """Returns the processor seconds so far of the page's server, of the engine if that is another process, and of
        the first page's process in the browser, without its graphics process."""
        server, *others = self._served.cpu_s().values()
        engine = {"engine": sum(others)} if others else {}
        return {"server": server, **engine, "page": _metrics(session)["ProcessTime"]}

    def _open(self) -> tuple[dict[str, Any], Any]:
        """Open the page and wait until it is complete; returns the measurements of this visit, and the page."""
        page = self._context.new_page()
        began = time.perf_counter()
        page.goto(self._served.address)
        page.wait_for_function(
            "() => window.Rose && Rose.panels && Rose.panels.length >= 4 && window.Plotly", timeout=_READY_MS
        )
        page.locator("#rp-lane-1").wait_for()
        return {**page.evaluate(probe.FIRST_VISIT), "ready_ms": (time.perf_counter() - began) * 1000}, page

    def _hold_to_rate(self, page: Any, seconds: float) -> float:
        """Keep up the load for this time, with the engine slowed down to the requested rate if it is faster. Checks the
        rate repeatedly, since steps cost more as answers grow. Returns the last slow motion."""
        until = time.monotonic() + seconds
        while True:
            before, began = page.evaluate(_TOKENS)
            left = until - time.monotonic()
            self._keep_up(page, min(_LOOK_S, left))
            after, ended = page.evaluate(_TOKENS)
            if left <= _LOOK_S:
                return self._slow
            rate = 1000 * (after - before) / (ended - began)
            slow = max(1.0, round(self._slow * rate / self._args.rate, 2))
            if abs(slow - self._slow) > _NEAR * slow:
                self._slow = slow
                self._served.call("set_knobs", knobs={"slow_motion": slow})

    def _load(self, page: Any, tokens: int | None = None) -> None:
        """Fill the page's lanes and send the other requests, all of which may run at once."""
        streams = self._args.lanes + self._args.others
        if streams > Knobs().max_batch_size:
            self._served.call("set_knobs", knobs={"max_batch_size": streams})
        longest = page.evaluate("() => Rose.store.info.max_model_len") - 512
        tokens = min(tokens or longest, longest)
        self._served.load(page.evaluate("() => Rose.tab"), self._args.lanes, self._args.others, tokens)

    def _keep_up(self, page: Any, seconds: float) -> None:
        """Keep up the load for this time, sending it again whenever all answers have ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            page.wait_for_timeout(250)
            if page.evaluate("() => Rose.store.open.size") == 0:
                self._load(page)

    def _soak(self, page: Any) -> list[dict[str, float]]:
        """Keep up the load and print and return samples of the memory of the browser and the server, in MB."""
        session = self._context.new_cdp_session(page)
        session.send("Performance.enable")
        began, samples = time.monotonic(), []
        while True:
            session.send("HeapProfiler.collectGarbage")
            metrics = _metrics(session)
            sample = {
                "s": time.monotonic() - began,
                "browser_heap_mb": metrics["JSHeapUsedSize"] / 1e6,
                "dom_nodes": metrics["Nodes"],
                "server_mb": self._served.resident_mb(),
                "tokens": page.evaluate("() => Rose.store.tokens.end"),
            }
            samples.append(sample)
            print("  ".join(f"{name} {value:,.0f}" for name, value in sample.items()), flush=True)
            left = self._args.soak_s - sample["s"]
            if left <= 0:
                return samples
            self._keep_up(page, min(_SAMPLE_S, left))


def _metrics(session: Any) -> dict[str, float]:
    return {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}


def _print(document: dict[str, Any]) -> None:
    first, again = document["first_visit"], document["second_visit"]
    way = document["to_screen_ms"]
    if way["p50"] is None:
        raise BenchmarkError("no token was seen on the screen: is the lanes' text hidden?")
    cores = ", ".join(f"{part.replace('_', ' ')} {share:.2f}" for part, share in document["cores"].items())
    print(
        f"first visit      paint {first['first_paint_ms']:.0f} ms, all there {first['ready_ms']:.0f} ms, "
        f"{first['requests']} requests, {first['bytes'] / 1e6:.1f} MB\n"
        f"second visit     paint {again['first_paint_ms']:.0f} ms, all there {again['ready_ms']:.0f} ms, "
        f"plotly transferred {again['plotly_transferred'] or 0:.0f} bytes\n"
        f"load             {document['tokens_per_s']:.0f} tokens/s, slow motion x{document['slow_motion']:g}, "
        f"{document['tabs']} tabs\n"
        f"token to screen  p50/p95/p99 {way['p50']:.0f}/{way['p95']:.0f}/{way['p99']:.0f} ms "
        f"({document['tokens_to_screen']} tokens)\n"
        f"frames           {document['frames_per_s']:.1f} a second, the longest {document['longest_frame_ms']:.0f} ms\n"
        f"polls            {document['polls_per_s']:.1f} a second, {document['kb_per_s']:.1f} kB/s\n"
        f"cores            {cores}, load average {document['load_average']:.1f}"
    )
