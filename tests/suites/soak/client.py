"""HTTP for the soak's clients: named endpoints, plain routes and the page's poll, with every unexpected response noted."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import Any

import httpx

from tests.suites.soak.journal import Journal

TIMEOUT_S = 300.0  # an export of half an hour takes a minute on a busy machine


class RefusedError(Exception):
    """The server refused with one line."""


class Client:
    """Calls to one server. Threads may share it, since each call has its own connection."""

    def __init__(self, port: int, journal: Journal) -> None:
        self.port, self.journal = port, journal
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S, limits=limits, trust_env=False
        )
        self._parameters: dict[str, list[tuple[str, Any]]] = {}
        for name, about in self.get("/gradio_api/info").json()["named_endpoints"].items():
            parameters = [(p["parameter_name"], p["parameter_default"]) for p in about["parameters"]]
            self._parameters[name.removeprefix("/")] = parameters

    def call(self, endpoint: str, **arguments: Any) -> Any:
        """Call a named endpoint; omitted arguments take their defaults. Raises ``RefusedError``, ``httpx.HTTPError``."""
        reply = self.post(f"/gradio_api/run/{endpoint}", self._data(endpoint, **arguments))
        answer = reply.json()
        if reply.status_code == 200 and "data" in answer:
            return answer["data"][0] if answer["data"] else None
        raise RefusedError(str(answer.get("error", answer)))

    def _data(self, endpoint: str, **arguments: Any) -> dict[str, Any]:
        unknown = arguments.keys() - {name for name, _ in self._parameters[endpoint]}
        if unknown:
            raise TypeError(f"/{endpoint} takes no {', '.join(unknown)}")
        return {"data": [arguments.get(name, default) for name, default in self._parameters[endpoint]]}

    def call_queued(self, endpoint: str, *, leave_after: int | None = None, **arguments: Any) -> Any:
        """Call it through Gradio's queue, as ``gradio_client`` does, and read its events to the end.

        With ``leave_after``, the connection is closed after that many events, and None is returned.
        """
        event_id = self.post(f"/gradio_api/call/{endpoint}", self._data(endpoint, **arguments)).json()["event_id"]
        with self._http.stream("GET", f"/gradio_api/call/{endpoint}/{event_id}") as reply:
            kind, seen = "", 0
            for line in reply.iter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data" and kind == "complete":
                    return json.loads(value)[0]
                elif name == "data" and kind == "error":
                    raise RefusedError(value)
                elif name == "data" and kind == "generating":
                    seen += 1
                    if seen == leave_after:
                        return None
        raise OSError(f"/{endpoint} through the queue ended without a result (status {reply.status_code})")

    def leave(self, endpoint: str, after_s: float, **arguments: Any) -> None:
        """Call it and close the connection without waiting for the answer."""
        with contextlib.suppress(httpx.TimeoutException):
            self._http.post(f"/gradio_api/run/{endpoint}", json=self._data(endpoint, **arguments), timeout=after_s)

    def get(self, path: str) -> httpx.Response:
        return self._noted(path, self._http.get(path))

    def post(self, path: str, body: Any) -> httpx.Response:
        return self._noted(path, self._http.post(path, json=body))

    def _noted(self, path: str, reply: httpx.Response) -> httpx.Response:
        self.journal.answered(path, reply.status_code, reply.content)
        return reply


class Poller(threading.Thread):
    """Asks for the page's news, again and again, until ``close``. A subclass takes them.

    Attributes:
        every_s: the time from one poll to the next.
    """

    def __init__(self, name: str, port: int, journal: Journal, every_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self._journal, self.every_s = journal, every_s
        headers = {"Accept-Encoding": "identity"}
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S, headers=headers, trust_env=False
        )
        self._closed = threading.Event()
        self._since, self._boot = 0, ""

    def run(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            asked = time.monotonic()
            try:
                reply = self._http.get("/ui/delta", params={"since": self._since, "boot": self._boot, **self.query()})
                self._journal.answered("/ui/delta", reply.status_code, reply.content)
                delta = reply.json()
                self.take(delta)
                self._since, self._boot = delta["next"], delta["boot_id"]
                pause = max(0.0, asked + self.every_s - time.monotonic())
            except Exception as error:
                self._journal.complain(f"a poll of {self.name}: {type(error).__name__}: {error}")
                pause = 1.0

    def query(self) -> dict[str, str]:
        """What a poll says beside the place from which it wants news."""
        return {}

    def take(self, delta: dict[str, Any]) -> None:
        """Take what a poll has brought."""
        raise NotImplementedError

    def close(self) -> None:
        self._closed.set()
        if self.ident is not None:
            self.join(TIMEOUT_S + 10)
        self._http.close()
