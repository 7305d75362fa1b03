"""What the page reports about a run: every frame of ``/ui/delta`` from the first request on, summed up."""

from __future__ import annotations

import http.client
import json
import threading
import time
from array import array
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from roseplay.engine.records import COLUMNS
from tests.suites.soak.client import TIMEOUT_S
from tests.suites.soak.journal import Journal

_POLL_S = 0.25
_PREEMPTED = COLUMNS["steps"].index("preempted")
_SETTLE_S = 1.5  # after the lab ran or a knob was reset, gaps are still affected


@dataclass(slots=True)
class Shown:
    """A request as the page showed it.

    Attributes:
        rows: its tokens, counted one by one.
        tokens: its tokens according to its end event; None while it runs.
        seen_finished_s: when its end was read.
    """

    kind: str
    prompt_tokens: int
    rows: int = 0
    tokens: int | None = None
    reason: str | None = None
    error: str | None = None
    seen_finished_s: float = 0.0


class Watcher(threading.Thread):
    """Polls until ``close`` and keeps what it reads; a reply that skips a frame is a complaint."""

    def __init__(self, port: int, journal: Journal) -> None:
        super().__init__(name="watcher", daemon=True)
        self._journal = journal
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self._closed = threading.Event()
        self._since, self._boot = 0, ""
        self._began = time.monotonic()
        self._odd_knobs: set[str] = set()
        self._defaults: dict[str, Any] = {}
        self._calm_from = 0.0
        self.shown: dict[int, Shown] = {}
        self.early_rows: Counter[int] = Counter()
        self.in_all: dict[str, Any] = {}
        self.stats: dict[str, Any] = {}
        self.tokens = 0
        self.steps = self.preempted = self.restarts = 0
        self.itl_ms: dict[int, array[float]] = defaultdict(lambda: array("f"))  # by minute, with default knobs only
        self.all_itl_ms: dict[int, array[float]] = defaultdict(lambda: array("f"))
        self.ready = threading.Event()

    def run(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            asked = time.monotonic()
            try:
                self._poll()
                self.ready.set()
            except Exception as error:
                self._journal.complain(f"the page's poll: {type(error).__name__}: {error}")
                self._connection.close()
                if self._closed.wait(1.0):
                    return
            pause = max(0.0, asked + _POLL_S - time.monotonic())

    def _poll(self) -> None:
        self._connection.request("GET", f"/ui/delta?{urlencode({'since': self._since, 'boot': self._boot})}")
        reply = self._connection.getresponse()
        body = reply.read()
        self._journal.answered("GET", "/ui/delta", reply.status, body)
        delta = json.loads(body)
        if self._boot and delta["boot_id"] != self._boot:
            self.restarts += 1
            self._journal.complain("the page's server has begun anew")
        elif self._boot and delta["reset"]:
            self._journal.complain("a poll came too late: frames are missing")
        if not self._boot:
            self._defaults = delta["snapshot"]["knobs"]
        if not delta["alive"]:
            self._journal.complain("the page says that the engine has stopped")
        self._boot, self._since = delta["boot_id"], delta["next"]
        if delta["lab"] or self._odd_knobs:
            self._calm_from = delta["now"] + 1000 * _SETTLE_S
        for frame in delta["frames"]:
            self._take(frame)

    def _take(self, frame: dict[str, Any]) -> None:
        for _, _, changed in frame["knobs"]:
            for name, (_, value) in changed.items():
                (self._odd_knobs.discard if value == self._defaults[name] else self._odd_knobs.add)(name)
        if self._odd_knobs:
            self._calm_from = frame["t"] + 1000 * _SETTLE_S
        for event in frame["requests"]:
            self._request(*event)
        minute = int((time.monotonic() - self._began) // 60)
        for request_id, t, itl_ms, _ in frame["tokens"]:
            self.tokens += 1
            shown = self.shown.get(request_id)
            if shown is None:
                self.early_rows[request_id] += 1  # a frame may report a request's tokens before the request
            else:
                shown.rows += 1
            if itl_ms is not None:
                self.all_itl_ms[minute].append(itl_ms)
                if t > self._calm_from:
                    self.itl_ms[minute].append(itl_ms)
        self.steps += len(frame["steps"])
        self.preempted += sum(len(step[_PREEMPTED]) for step in frame["steps"])
        if frame["stats"]:
            self.stats, self.in_all = frame["stats"], frame["stats"]["in_all"]

    def _request(self, request_id: int, kind: str, _: float, about: dict[str, Any]) -> None:
        if kind == "submitted":
            if request_id in self.shown:
                self._journal.complain(f"the page showed request {request_id} twice")
            rows = self.early_rows.pop(request_id, 0)
            self.shown[request_id] = Shown(about.get("kind", "api"), about.get("prompt_tokens", 0), rows)
        elif kind == "finished":
            shown = self.shown.get(request_id)
            if shown is None or shown.reason is not None:
                self._journal.complain(f"the page showed the end of request {request_id}, which had none")
                return
            shown.tokens, shown.reason, shown.error = about.get("tokens", 0), about["reason"], about.get("error")
            shown.seen_finished_s = time.monotonic()

    def unfinished(self) -> list[int]:
        """Requests whose end has not been reported."""
        return [request_id for request_id, shown in list(self.shown.items()) if shown.reason is None]

    def close(self) -> None:
        self._closed.set()
        self.join(TIMEOUT_S + 10)
        self._connection.close()
