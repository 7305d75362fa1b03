"""``roseplay serve`` for benchmarks, in its own process, with a client that does as little as possible."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roseplay.bench.server_process import ServerProcess

_CONNECT_WITHIN_S = 60.0


@dataclass
class Seen:
    """One streamed answer as the client sees it: ``status_s`` is a duration, ``times`` are from ``perf_counter``."""

    status: int = 0
    status_s: float = 0.0
    times: list[float] = field(default_factory=list)
    ended: bool = False


class ServedApi(ServerProcess):
    """A process that runs ``roseplay serve``; ``model`` is the model's name in requests.

    Args:
        flags: of its command line, without ``--port``.
    """

    def __init__(self, flags: list[str]) -> None:
        super().__init__("serve", ["--grace", "0", *flags])
        self.model = self.said.rsplit("(", 1)[1].split(",")[0]

    async def stream(self, asked: Mapping[str, Any]) -> Seen:
        """Requests a streamed completion with these fields. The client takes processor time from the server."""
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
