"""Samples of a run: the resources of the server's processes, and whether it responds."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from tests.processes import folder_size
from tests.suites.soak.client import Client
from tests.suites.soak.server import Server

_FRAME_BYTES = 300  # for a frame's objects, besides its text
_UNHEALTHY_S = 10.0


class Sampler(threading.Thread):
    """Samples until ``close``. ``series`` holds (seconds since the start, value) by name.

    The names are ``server`` and ``worker`` with ``memory``, ``fds`` and ``threads``, ``temporary files`` and
    ``temporary mb``, ``recording mb`` (the page's bounded record of the run), and ``other processes``.
    """

    def __init__(self, server: Server, client: Client, every_s: float) -> None:
        super().__init__(name="sampler", daemon=True)
        self._server, self._client, self._every_s = server, client, every_s
        self._closed = threading.Event()
        self._began = time.monotonic()
        self.series: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def run(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                self.sample()
            except Exception as error:
                self._client.journal.complain(f"a sample: {type(error).__name__}: {error}")

    def sample(self) -> None:
        found = self._server.usage()
        files, size = folder_size(self._server.temporary)
        kept = self._client.get("/ui/export").json()
        values: dict[str, float] = {
            "other processes": len(found.get("other", [])),
            "temporary files": files,
            "temporary mb": size,
            "recording mb": (kept["bytes"] + _FRAME_BYTES * kept["frames"]) / 1e6,
        }
        for role in ("server", "worker"):
            if role not in found:
                self._client.journal.complain(f"the {role}'s process has gone")
                continue
            (held,) = found[role]
            values |= {f"{role} memory": held.memory_mb, f"{role} fds": held.fds, f"{role} threads": held.threads}
        now = time.monotonic() - self._began
        for name, value in values.items():
            self.series[name].append((now, float(value)))
        self._check_health()

    def _check_health(self) -> None:
        """Complain only if the problem lasts: on a shared machine, the engine may have to wait for some seconds."""
        until = time.monotonic() + _UNHEALTHY_S
        while (reply := self._client.get("/health")).status_code != 200:
            if time.monotonic() > until:
                self._client.journal.complain(
                    f"/health answered {reply.status_code} for {_UNHEALTHY_S:g} s: {reply.text[:200]}"
                )
                return
            time.sleep(0.5)

    def newest(self, name: str) -> float:
        return self.series[name][-1][1] if self.series[name] else 0.0

    def close(self) -> None:
        self._closed.set()
        self.join(120)
