"""The page's server for benchmarks, in its own process, and a tab without a browser, both through public endpoints."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import Any
from urllib.parse import urlencode

from roseplay.extras.bench.runs import BenchmarkError
from roseplay.extras.bench.server_process import ROSEPLAY, ServerProcess

POLL_S = 0.1  # from one request to the next, as in static/shared/poll.js


class ServedPage(ServerProcess):
    """A process that runs ``roseplay play`` with these flags, and chooses the port."""

    def __init__(self, flags: list[str]) -> None:
        super().__init__([*ROSEPLAY, "play"], flags)
        self._parameters = self._named_endpoints()

    def call(self, endpoint: str, **arguments: Any) -> Any:
        """Call a named endpoint; missing arguments take their defaults. Raises ``BenchmarkError`` if it refuses."""
        data = [arguments.pop(name, default) for name, default in self._parameters[endpoint]]
        if arguments:
            raise TypeError(f"/{endpoint} takes no {', '.join(arguments)}")
        reply = self.http.post(f"/gradio_api/run/{endpoint}", json={"data": data}).json()
        if "data" not in reply:
            raise BenchmarkError(f"the page refused /{endpoint}: {reply.get('error', reply)}")
        return reply["data"][0]

    def load(self, tab: str, lanes: int, others: int, max_new_tokens: int, seed: int = 1) -> set[int]:
        """Fill the lanes of a tab and send a burst of other requests; returns the ids of all requests."""
        self.call("new_chat", tab=tab)  # otherwise the prompts would grow from run to run
        answer = {"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": True}
        ids: set[int] = set()
        for lane in range(1, lanes + 1):
            prompt = f"{lane}: What does the scheduler do in each step?"
            ids.update(self.call("submit", prompt=prompt, lane=lane, tab=tab, **answer)["ids"])
        if others:
            ids.update(self.call("burst", size=others, kind="unique", max_new_tokens=max_new_tokens, seed=seed)["ids"])
        return ids

    def resident_mb(self) -> float:
        """Returns the memory in MB that the server and its children hold; 0 if the system does not report it."""
        return sum(self.family().values()) / 1000

    def _named_endpoints(self) -> dict[str, list[tuple[str, Any]]]:
        """Returns each endpoint's parameters in order, with their defaults."""
        described = self.http.get("/gradio_api/info").json()["named_endpoints"]
        return {
            name.removeprefix("/"): [(p["parameter_name"], p["parameter_default"]) for p in about["parameters"]]
            for name, about in described.items()
        }


class PollingTab(threading.Thread):
    """Polls ``/ui/delta`` on one persistent connection until ``close``, as a page does, and keeps the replies.

    Args:
        port: the page server's port on this machine.
        tab: its id; replies include this tab's lanes.
    """

    def __init__(self, port: int, tab: str) -> None:
        super().__init__(daemon=True)
        self.tab = tab
        self._replies: list[bytes] = []
        self._have: dict[int, str] = {}
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._closed = threading.Event()
        self.start()

    def run(self) -> None:
        since, boot, pause = 0, "", 0.0
        while not self._closed.wait(pause):
            start = time.monotonic()
            query = {"since": since, "boot": boot, "tab": self.tab, "have": ",".join(self._have.values())}
            self._connection.request("GET", f"/ui/delta?{urlencode(query)}")
            body = self._connection.getresponse().read()
            reply = json.loads(body)
            since, boot = reply["next"], reply["boot_id"]
            self._have.update((lane["lane"], lane["have"]) for lane in reply["own"]["lanes"])
            self._replies.append(body)
            pause = max(0.0, start + POLL_S - time.monotonic())

    def frames(self) -> list[dict[str, Any]]:
        """Returns all frames received so far, without duplicates."""
        frames: dict[int, dict[str, Any]] = {}
        for body in list(self._replies):
            frames.update((frame["seq"], frame) for frame in json.loads(body)["frames"])
        return [frames[number] for number in sorted(frames)]

    def close(self) -> None:
        """Stop polling."""
        self._closed.set()
        self.join(30)
        self._connection.close()
