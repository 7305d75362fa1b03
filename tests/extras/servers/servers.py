"""Other servers for tests: hand-written responses, and answers without a connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from roseplay.clock import SYSTEM_CLOCK
from roseplay.config import SamplingParams
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.telemetry import LoadEvent, Telemetry
from roseplay.extras.servers.engine import HttpEngine
from roseplay.extras.servers.exchange import Exchanges
from roseplay.extras.servers.lateness import Lateness
from roseplay.extras.servers.live import RemoteStreams
from roseplay.extras.servers.stream import HttpStream
from tests.at_a_port import at_a_port


def event(document: Any) -> bytes:
    return b"data: " + (document if isinstance(document, bytes) else json.dumps(document).encode()) + b"\n\n"


def words(*texts: str, **last: Any) -> list[bytes]:
    """The events of a chat completion: the role, some pieces of text, the end."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": text} for text in texts)]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return [event(chunk) for chunk in [*chunks, end, *([{"choices": [], **last}] if last else [])]] + [event(b"[DONE]")]


class Script:
    """A server with prepared responses.

    Args:
        events: the body of each streamed answer; an exception breaks the connection.
        card: what it says about its model.
        metrics: its ``/metrics``.
        refuse: returns a refusal for a request's body, or None.
    """

    def __init__(
        self,
        events: Sequence[bytes] | Callable[[], AsyncIterator[bytes]],
        *,
        card: Mapping[str, Any] | None = None,
        metrics: str | None = None,
        refuse: Callable[[dict[str, Any]], Response | None] = lambda body: None,
    ) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.ports: list[int] = []  # the clients' ports, which identify their connections
        self.metrics = metrics
        self.app = app = FastAPI()

        @app.get("/v1/models")
        def models() -> Any:
            return {"data": [{"id": "scripted", **(card or {})}]}

        @app.get("/metrics")
        def metrics_text() -> Response:
            return PlainTextResponse(self.metrics or "", 404 if self.metrics is None else 200)

        @app.post("/v1/{path:path}")
        async def answer(path: str, request: Request) -> Response:
            body = await request.json()
            self.bodies.append(body)
            self.paths.append(path)
            self.ports.append(request.client.port)  # type: ignore[union-attr]
            refused = refuse(body)
            if refused is not None:
                return refused
            content = events() if callable(events) else iter(events)
            return StreamingResponse(content, media_type="text/event-stream")


@contextmanager
def attached(app: FastAPI | Script, **options: Any) -> Iterator[HttpEngine]:
    """An engine that uses a server at a free port."""
    with at_a_port(app.app if isinstance(app, Script) else app) as address, HttpEngine(address, **options) as remote:
        yield remote


def loads_of(remote: HttpEngine) -> list[LoadEvent]:
    """The loads that its telemetry reports."""
    return [event for event in remote.telemetry.since(0)[1] if isinstance(event, LoadEvent)]


class Exchange:
    """A request whose answer is read to its end, without a connection.

    Args:
        reply: returns the response to a request's body.
        counts_chunks, refusal_s: see ``Exchanges``.
    """

    def __init__(
        self,
        reply: Callable[[dict[str, Any]], httpx.Response],
        params: SamplingParams | None = None,
        *,
        counts_chunks: bool = False,
        refusal_s: float = 10.0,
    ) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.telemetry = Telemetry(20_000)
        self.stream = HttpStream(0, [], params or SamplingParams(), lambda _: False, SYSTEM_CLOCK.now_ns())
        live = RemoteStreams(self.telemetry, SYSTEM_CLOCK, Capabilities())
        live.add(self.stream)

        def respond(request: httpx.Request) -> httpx.Response:
            self.bodies.append(json.loads(request.content))
            return reply(self.bodies[-1])

        async def run() -> None:
            async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
                lateness = Lateness(SYSTEM_CLOCK)
                options = {"counts_chunks": counts_chunks, "refusal_s": refusal_s}
                exchanges = Exchanges(client, "http://server", live, SYSTEM_CLOCK, lateness, **options)  # type: ignore[arg-type]
                await exchanges.run(self.stream, "/chat/completions", {})

        asyncio.run(run())


def streamed(portions: Iterable[bytes], status: int = 200) -> httpx.Response:
    """A response whose body comes in these portions."""

    async def body() -> AsyncIterator[bytes]:
        for portion in portions:
            yield portion

    return httpx.Response(status, content=body())


def answer(portions: Iterable[bytes], params: SamplingParams | None = None) -> HttpStream:
    """The stream of a request whose answer comes in these portions."""
    return Exchange(lambda body: streamed(portions), params).stream
