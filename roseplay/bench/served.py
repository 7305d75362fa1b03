"""The page's server as a benchmark needs it: in a process of its own, driven by its public endpoints."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from typing import Any

from roseplay.bench.runs import BenchmarkError

_GIVE_UP_S = 120.0


class ServedPage:
    """``roseplay play`` on a free port of this machine, from construction to ``close``.

    Args:
        flags: of its command line besides ``--port``.

    Raises:
        BenchmarkError: it did not start.
    """

    def __init__(self, flags: list[str]) -> None:
        command = [sys.executable, "-m", "roseplay", "play", "--port", "0", *flags]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()  # the server ends by itself when it cannot start
        if " is live at " not in line:
            said = line.strip() or self._process.stderr.read().strip().rpartition("\n")[2]  # after how far it was
            raise BenchmarkError(f"the page did not start: {said}")
        self.address = line.split(" is live at ")[1].split(" ")[0]
        self.port = int(self.address.rsplit(":", 1)[1])
        self._parameters = self._named_endpoints()

    def __enter__(self) -> ServedPage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, endpoint: str, **arguments: Any) -> Any:
        """Call a named endpoint; what is not given takes its default. Raises ``BenchmarkError`` when it refuses."""
        data = [arguments.pop(name, default) for name, default in self._parameters[endpoint]]
        if arguments:
            raise TypeError(f"/{endpoint} takes no {', '.join(arguments)}")
        reply = json.loads(self._exchange("POST", f"/gradio_api/run/{endpoint}", json.dumps({"data": data})))
        if "data" not in reply:
            raise BenchmarkError(f"the page refused /{endpoint}: {reply.get('error', reply)}")
        return reply["data"][0]

    def load(self, tab: str, lanes: int, others: int, max_new_tokens: int, seed: int = 1) -> set[int]:
        """Fill the lanes of a tab and send a burst of others besides; returns the ids of all requests."""
        self.call("new_chat", tab=tab)  # else the prompts would grow from run to run
        answer = {"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": True}
        ids: set[int] = set()
        for lane in range(1, lanes + 1):
            prompt = f"{lane}: What does the scheduler do in each step?"
            ids.update(self.call("submit", prompt=prompt, lane=lane, tab=tab, **answer)["ids"])
        if others:
            ids.update(self.call("burst", size=others, kind="unique", max_new_tokens=max_new_tokens, seed=seed)["ids"])
        return ids

    def resident_mb(self) -> float:
        """Memory that the server and its children hold, in MB; 0 where the system does not tell."""
        listed = subprocess.run(["ps", "-eo", "pid=,ppid=,rss="], capture_output=True, text=True).stdout
        rows = [tuple(map(int, line.split())) for line in listed.splitlines()]
        family = {self._process.pid}
        for pid, parent, _ in sorted(rows):
            if parent in family:
                family.add(pid)
        return sum(rss for pid, _, rss in rows if pid in family) / 1000

    def _named_endpoints(self) -> dict[str, list[tuple[str, Any]]]:
        """Each endpoint's parameters in order, with their defaults."""
        described = json.loads(self._exchange("GET", "/gradio_api/info"))["named_endpoints"]
        return {
            name.removeprefix("/"): [(p["parameter_name"], p["parameter_default"]) for p in about["parameters"]]
            for name, about in described.items()
        }

    def _exchange(self, method: str, path: str, body: str | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_GIVE_UP_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            return connection.getresponse().read()
        finally:
            connection.close()
