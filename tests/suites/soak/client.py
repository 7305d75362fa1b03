"""HTTP for the soak's clients: named endpoints and plain routes, with a record of every unexpected response."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.suites.soak.journal import Journal

TIMEOUT_S = 300.0  # an export of half an hour takes a minute on a busy machine
_JSON = {"Content-Type": "application/json"}


class RefusedError(Exception):
    """The server refused with one line."""


class Client:
    """Calls to one server. Threads may share it, since each call has its own connection."""

    def __init__(self, port: int, journal: Journal) -> None:
        self.port, self.journal = port, journal
        self._parameters: dict[str, list[tuple[str, Any]]] = {}
        described = json.loads(self.get("/gradio_api/info")[1])["named_endpoints"]
        for name, about in described.items():
            parameters = [(p["parameter_name"], p["parameter_default"]) for p in about["parameters"]]
            self._parameters[name.removeprefix("/")] = parameters

    def call(self, endpoint: str, **arguments: Any) -> Any:
        """Call a named endpoint; omitted arguments take their defaults. Raises ``RefusedError``, ``OSError``."""
        status, body = self.post(f"/gradio_api/run/{endpoint}", self.data(endpoint, **arguments))
        return self._result(endpoint, status, body)

    def data(self, endpoint: str, **arguments: Any) -> dict[str, Any]:
        """The body of a call to a named endpoint."""
        unknown = arguments.keys() - {name for name, _ in self._parameters[endpoint]}
        if unknown:
            raise TypeError(f"/{endpoint} takes no {', '.join(unknown)}")
        return {"data": [arguments.get(name, default) for name, default in self._parameters[endpoint]]}

    def call_queued(self, endpoint: str, *, leave_after: int | None = None, **arguments: Any) -> Any:
        """Call it through Gradio's queue, as ``gradio_client`` does, and read its events to the end.

        With ``leave_after``, the connection is closed after that many events, and None is returned.
        """
        status, body = self.post(f"/gradio_api/call/{endpoint}", self.data(endpoint, **arguments))
        event_id = json.loads(body)["event_id"]
        path = f"/gradio_api/call/{endpoint}/{event_id}"
        with self._asked("GET", path) as reply:
            self.journal.answered("GET", path, reply.status, b"")
            kind, seen = "", 0
            for raw in reply:
                name, _, value = raw.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data" and kind == "complete":
                    return json.loads(value)[0]
                elif name == "data" and kind == "error":
                    told = json.loads(value) if value not in ("", "null") else {}
                    return self._result(endpoint, 500, json.dumps(told if isinstance(told, dict) else {"error": told}))
                elif name == "data" and kind in ("generating", "heartbeat"):
                    seen += kind == "generating"
                    if leave_after is not None and seen >= leave_after:
                        return None
        raise OSError(f"/{endpoint} through the queue ended without a result (status {status})")

    def leave(self, endpoint: str, after_s: float, **arguments: Any) -> None:
        """Call it and close the connection without reading the answer, which may have arrived meanwhile."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            body = json.dumps(self.data(endpoint, **arguments))
            connection.request("POST", f"/gradio_api/run/{endpoint}", body, _JSON)
            self.journal.pause(after_s)
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, bytes]:
        with self._asked("GET", path) as reply:
            return self._noted("GET", path, reply.status, reply.read())

    def post(self, path: str, body: Any) -> tuple[int, bytes]:
        with self._asked("POST", path, json.dumps(body)) as reply:
            return self._noted("POST", path, reply.status, reply.read())

    def _noted(self, method: str, path: str, status: int, body: bytes) -> tuple[int, bytes]:
        self.journal.answered(method, path.split("?")[0], status, body)
        return status, body

    def _result(self, endpoint: str, status: int, body: bytes | str) -> Any:
        answer = json.loads(body)
        if status == 200 and "data" in answer:
            return answer["data"][0] if answer["data"] else None
        raise RefusedError(str(answer.get("error", answer)))

    @contextmanager
    def _asked(self, method: str, path: str, body: str | None = None) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, _JSON if body else {})
            yield connection.getresponse()
        finally:
            connection.close()
