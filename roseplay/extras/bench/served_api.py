"""``roseplay serve`` for benchmarks, in its own process, with a client that does as little as possible."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roseplay.extras.bench.runs import BenchmarkError
from roseplay.extras.bench.server_process import ROSEPLAY, ServerProcess, cpu_s
from roseplay.traffic.metrics import percentile

_CONNECT_WITHIN_S = 60.0


@dataclass
class Seen:
    """One streamed answer as the client sees it: ``status_s`` is a duration, ``times`` are from ``perf_counter``."""

    status: int = 0
    status_s: float = 0.0
    times: list[float] = field(default_factory=list)
    ended: bool = False


class ServedApi(ServerProcess):
    """A process that runs ``roseplay serve`` with these flags; ``model`` is the model's name in requests."""

    def __init__(self, flags: list[str]) -> None:
        super().__init__([*ROSEPLAY, "serve"], ["--grace", "0", *flags])
        self.model = self.http.get("/v1/models").json()["data"][0]["id"]

    def load(self, prompts: Sequence[Any], max_tokens: int, time_limit_s: float) -> dict[str, Any]:
        """Send a request for each prompt at once, read all answers and return figures; the client's latencies in ms.

        Processor times are per token: of the serving thread (``api_us``), of the processes that it has started
        (``engine_us``), and of all processes (``cpu_us``).

        Raises:
            BenchmarkError: no request was answered.
            TimeoutError: not all had ended after ``time_limit_s`` seconds.
        """

        async def streams() -> list[Seen]:
            bodies = ({"prompt": prompt, "max_tokens": max_tokens} for prompt in prompts)
            return await asyncio.gather(*map(self.stream, bodies))

        before, began = self._cpu_s(), time.perf_counter()
        seen = asyncio.run(asyncio.wait_for(streams(), time_limit_s))
        took = time.perf_counter() - began
        thread_s, process_s, engine_s = (now - then for now, then in zip(self._cpu_s(), before, strict=True))
        statuses, ended = Counter(str(one.status) for one in seen), [one for one in seen if one.ended]
        tokens = len(ended) * max_tokens
        if not tokens:
            raise BenchmarkError(f"no request was answered: {dict(statuses)}")
        gaps = sorted(b - a for one in seen for a, b in zip(one.times, one.times[1:], strict=False))
        return {
            "statuses": dict(statuses),
            "ended": len(ended),
            "refused_within_s": max((one.status_s for one in seen if one.status == 429), default=None),
            "tokens_per_s": tokens / took,
            "api_us": thread_s / tokens * 1e6,
            "engine_us": engine_s / tokens * 1e6,
            "cpu_us": (process_s + engine_s) / tokens * 1e6,
            "ttft_p50_ms": 1e3 * (statistics.median(one.times[0] for one in ended) - began),
            **{f"itl_p{p}_ms": 1e3 * (percentile(gaps, p) or 0.0) for p in (50, 95, 99)},
        }

    def _cpu_s(self) -> tuple[float, float, float]:
        """Returns the processor seconds of the serving thread, of its process, and of those that it has started."""
        process, *others = self.cpu_s().values()
        return cpu_s(Path(f"/proc/{self.pid}/task/{self.pid}/stat")), process, sum(others)

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
