"""``roseplay serve`` as a benchmark needs it: in a process of its own, asked by a client that does as little as possible."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from roseplay.bench.runs import BenchmarkError

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_CONNECT_WITHIN_S = 60.0
_END_WITHIN_S = 30.0


@dataclass
class Seen:
    """What the client sees of one streamed answer; times are of ``perf_counter``."""

    status: int = 0
    status_s: float = 0.0
    times: list[float] = field(default_factory=list)
    ended: bool = False


class ServedApi:
    """A server at a free port of this machine, which ends with the context.

    Args:
        flags: of its command line besides ``--port``.

    Raises:
        BenchmarkError: it did not start.
    """

    def __init__(self, flags: list[str]) -> None:
        command = [sys.executable, "-m", "roseplay", "serve", "--port", "0", "--grace", "0", *flags]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        if " is live at " not in line:
            said = self._process.stderr.read().strip().rpartition("\n")[2]
            raise BenchmarkError(f"the server did not start: {said}")
        self.pid = self._process.pid
        self.port = int(line.split(" is live at http://")[1].split("/")[0].rsplit(":", 1)[1])
        self.model = line.rsplit("(", 1)[1].split(",")[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    async def stream(self, asked: Mapping[str, Any]) -> Seen:
        """Returns what came of a streamed completion with these fields; the client takes processor time from the server."""
        body = json.dumps({"model": self.model, "ignore_eos": True, **asked, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        seen, began = Seen(), time.perf_counter()
        connecting = asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = await asyncio.wait_for(connecting, _CONNECT_WITHIN_S)
        writer.write(head.encode() + body)
        seen.status = int((await reader.readuntil(b"\r\n\r\n")).split()[1])
        seen.status_s = time.perf_counter() - began
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                seen.times.append(time.perf_counter())
            seen.ended = seen.ended or line.startswith(b"data: [DONE]")
        writer.close()
        return seen

    def family(self) -> list[int]:
        """Returns the server's process and all that it has started, directly or not."""
        listed = subprocess.run(["ps", "-eo", "ppid=,pid="], capture_output=True, text=True).stdout
        children: dict[int, list[int]] = {}
        for parent, child in (map(int, line.split()) for line in listed.splitlines()):
            children.setdefault(parent, []).append(child)
        found = [self.pid]
        for pid in found:  # grows meanwhile
            found += children.get(pid, [])
        return found


def cpu_s(stat: Path) -> float:
    """Returns the processor seconds in a ``stat`` of /proc; 0 if its process has ended."""
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
