"""Samples of a run: the resources of the server's processes, whether it responds, and how fast this machine is."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict
from typing import Any

from tests.processes import folder_size
from tests.suites.soak.client import Client
from tests.suites.soak.journal import Journal
from tests.suites.soak.server import Server

_REFERENCE = b"roseplay" * 500_000  # hashed repeatedly, without running another thread's Python code
_REFERENCE_EVERY_S = 0.5
_FRAME_BYTES = 300  # for a frame's objects, besides its text
_HEALTH = "/health"
_UNHEALTHY_S = 10.0


class Sampler(threading.Thread):
    """Samples until ``close``. ``series`` holds (seconds since the start, value) by name.

    The names are ``server`` and ``worker`` with ``memory``, ``rss``, ``fds`` and ``threads``, ``temporary files`` and
    ``temporary mb``, ``recording mb`` (the page's bounded record of the run), and ``other processes``.
    """

    def __init__(self, server: Server, client: Client, journal: Journal, every_s: float) -> None:
        super().__init__(name="sampler", daemon=True)
        self._server, self._client, self._journal, self._every_s = server, client, journal, every_s
        self._closed = threading.Event()
        self.began = time.monotonic()
        self.series: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def run(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                self.sample()
            except Exception as error:
                self._journal.complain(f"a sample: {type(error).__name__}: {error}")

    def sample(self) -> None:
        now = time.monotonic() - self.began
        found = self._server.usage()
        for role in ("server", "worker"):
            for held in found.get(role, [])[:1]:
                self._add(now, f"{role} memory", held.memory_mb)
                self._add(now, f"{role} rss", held.rss_mb)
                self._add(now, f"{role} fds", held.fds)
                self._add(now, f"{role} threads", held.threads)
        for role in ("server", "worker"):
            if role not in found:
                self._journal.complain(f"the {role}'s process has gone")
        self._add(now, "other processes", len(found.get("other", [])))
        files, size = folder_size(self._server.temporary)
        self._add(now, "temporary files", files)
        self._add(now, "temporary mb", size)
        kept = json.loads(self._client.get("/ui/export")[1])
        self._add(now, "recording mb", (kept["bytes"] + _FRAME_BYTES * kept["frames"]) / 1e6)
        self._check_health()

    def _check_health(self) -> None:
        """Complain only if the problem lasts: on a shared machine, the engine may have to wait for some seconds."""
        until = time.monotonic() + _UNHEALTHY_S
        while True:
            status, body = self._client.get(_HEALTH)
            if status == 200:
                return
            self._journal.count("slow health")
            if time.monotonic() > until:
                reason = body[:200].decode(errors="replace")
                self._journal.complain(f"{_HEALTH} answered {status} for {_UNHEALTHY_S:g} s: {reason}")
                return
            time.sleep(0.5)

    def _add(self, now: float, name: str, value: float) -> None:
        self.series[name].append((now, float(value)))

    def newest(self, name: str) -> float:
        return self.series[name][-1][1] if self.series[name] else 0.0

    def close(self) -> None:
        self._closed.set()
        self.join(120)


class Reference(threading.Thread):
    """A small fixed computation, timed twice a second: how busy the machine is, independently of the server."""

    def __init__(self) -> None:
        super().__init__(name="reference", daemon=True)
        self._closed = threading.Event()
        self._began = time.monotonic()
        self.times_ms: dict[int, list[float]] = defaultdict(list)  # by minute

    def run(self) -> None:
        while not self._closed.wait(_REFERENCE_EVERY_S):
            began = time.perf_counter()
            hashlib.sha256(_REFERENCE).digest()
            self.times_ms[int((time.monotonic() - self._began) // 60)].append((time.perf_counter() - began) * 1000)

    def close(self) -> None:
        self._closed.set()
        self.join(10)


def pooled(by_minute: dict[int, Any], minutes: range) -> list[float]:
    """Returns the sorted values of these minutes."""
    return sorted(value for minute in minutes for value in by_minute.get(minute, ()))
