"""A real tab in Chromium, in which chats stream all the time, and samples of its heap and nodes."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from tests.suites.soak.client import Client, RefusedError
from tests.suites.soak.journal import Journal

_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
_READY_MS = 60_000
_SAMPLE_S = 15.0
_ACT_S = 4.0
# Clicks in a lane may send a request, whose id this client would not learn.
_SENDS_NOTHING = "([x, y]) => !document.elementFromPoint(x, y)?.closest('.rp-lanes')"
_READY = "() => window.Rose && Rose.panels && Rose.panels.length >= 4 && window.Plotly"


class BrowserTab(threading.Thread):
    """Runs from ``start`` to ``close``. ``heap_mb`` and ``nodes`` are (seconds since the start, value) after a GC."""

    def __init__(self, chromium: str, client: Client, journal: Journal, seed: int) -> None:
        super().__init__(name="browser", daemon=True)
        self._chromium, self._client, self._journal = chromium, client, journal
        self._random = random.Random(f"{seed} browser")
        self._closed = threading.Event()
        self._mine: list[int] = []
        self.heap_mb: list[tuple[float, float]] = []
        self.nodes: list[tuple[float, float]] = []

    def run(self) -> None:
        from playwright.sync_api import sync_playwright

        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=self._chromium, args=list(_ARGUMENTS), handle_sigint=False
                )
                try:
                    self._visit(browser)
                finally:
                    browser.close()
        except Exception as error:
            if not self._journal.pause(3.0):  # Ctrl-C ends the browser too, and then the run
                self._journal.complain(f"the browser: {type(error).__name__}: {str(error)[:300]}")

    def _visit(self, browser: Any) -> None:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = self._open(context)
        session = context.new_cdp_session(page)
        session.send("Performance.enable")
        began, sampled = time.monotonic(), 0.0
        while not self._closed.is_set():
            page.wait_for_timeout(1000 * self._random.uniform(0.2, 1.8) * _ACT_S)
            self._act(context, page)
            if time.monotonic() - sampled >= _SAMPLE_S:
                sampled = time.monotonic()
                self._sample(session, sampled - began)

    def _open(self, context: Any) -> Any:
        page = context.new_page()
        page.on(
            "console", lambda m: m.type == "error" and self._journal.complain(f"the browser's console: {m.text[:300]}")
        )
        page.on("pageerror", lambda error: self._journal.complain(f"an error in the page: {str(error)[:300]}"))
        page.goto(f"http://127.0.0.1:{self._client.port}")
        page.wait_for_function(_READY, timeout=_READY_MS)
        return page

    def _act(self, context: Any, page: Any) -> None:
        act = self._random.choice(("ask", "ask", "ask", "burst", "new chat", "click", "another tab"))
        tab = page.evaluate("() => Rose.tab")
        asked_s = time.monotonic()
        try:
            if act == "ask":
                asked = {"prompt": "What is a KV block?", "lane": self._random.choice((0, 1, 2)), "tab": tab}
                with self._journal.stopping(self._mine[-80:]):
                    ids = self._client.call("submit", max_new_tokens=150, temperature=0.8, **asked)["ids"]
                self._mine += self._journal.submitted("lane", ids, asked_s, None)
            elif act == "burst":
                ids = self._client.call("burst", size=20, kind="shared head", max_new_tokens=32, tab=tab)["ids"]
                self._mine += self._journal.submitted("burst", ids, asked_s, 32)
            elif act == "new chat":
                with self._journal.stopping(self._mine[-80:]):
                    self._client.call("new_chat", tab=tab)
            elif act == "click":
                at = self._random.randrange(700, 1400), self._random.randrange(250, 800)
                if page.evaluate(_SENDS_NOTHING, at):
                    page.mouse.click(*at)
                    page.keyboard.press("Escape")
            else:
                other = self._open(context)  # the first tab is hidden meanwhile
                other.wait_for_timeout(1500)
                other.close()
                page.bring_to_front()
        except RefusedError as error:
            self._journal.refused(f"the browser's {act}", str(error))
        self._journal.count(f"browser: {act}")

    def _sample(self, session: Any, now: float) -> None:
        session.send("HeapProfiler.collectGarbage")
        metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        self.heap_mb.append((now, metrics["JSHeapUsedSize"] / 1e6))
        self.nodes.append((now, float(metrics["Nodes"])))

    def close(self) -> None:
        self._closed.set()
        self.join(120)
