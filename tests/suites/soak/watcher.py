"""What the page reports about a run: every frame of ``/ui/delta`` from the first request on, summed up."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.suites.soak.client import Poller
from tests.suites.soak.journal import Journal

_POLL_S = 0.25


@dataclass(slots=True)
class Shown:
    """A request as the page showed it."""

    kind: str
    prompt_tokens: int
    rows: int = 0  # its tokens, counted one by one
    tokens: int | None = None  # its tokens according to its end event; None while it runs
    reason: str | None = None
    error: str | None = None
    seen_finished_s: float = 0.0  # when its end was read


class Watcher(Poller):
    """Polls until ``close`` and keeps what it reads; a reply that skips a frame is a complaint."""

    def __init__(self, port: int, journal: Journal) -> None:
        super().__init__("the watcher", port, journal, _POLL_S)
        self.shown: dict[int, Shown] = {}
        self.early_rows: Counter[int] = Counter()
        self.in_all: dict[str, Any] = {}
        self.stats: dict[str, Any] = {}
        self.tokens = self.steps = 0
        self.ready = threading.Event()

    def take(self, delta: dict[str, Any]) -> None:
        if self._boot and delta["boot_id"] != self._boot:
            self._journal.complain("the page's server has begun anew")
        elif self._boot and delta["reset"]:
            self._journal.complain("a poll came too late: frames are missing")
        if not delta["alive"]:
            self._journal.complain("the page says that the engine has stopped")
        for frame in delta["frames"]:
            self._take_frame(frame)
        self.ready.set()

    def _take_frame(self, frame: dict[str, Any]) -> None:
        for event in frame["requests"]:
            self._take_request(*event)
        for request_id, *_ in frame["tokens"]:
            self.tokens += 1
            shown = self.shown.get(request_id)
            if shown is None:
                self.early_rows[request_id] += 1  # a frame may report a request's tokens before the request
            else:
                shown.rows += 1
        self.steps += len(frame["steps"])
        if frame["stats"]:
            self.stats, self.in_all = frame["stats"], frame["stats"]["in_all"]

    def _take_request(self, request_id: int, kind: str, _: float, about: dict[str, Any]) -> None:
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
