"""What a server reports about itself: to Prometheus, to its log, and to a trace collector."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPMethod
from typing import TYPE_CHECKING, Any

import prometheus_client
from fastapi import APIRouter, HTTPException, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roseplay.engine.engine_like import EngineLike
from roseplay.engine.errors import EngineError
from roseplay.engine.telemetry import RequestEvent, Telemetry, TelemetryEvent
from roseplay.serve.errors import PREFIX
from roseplay.serve.follower import Follower
from roseplay.serve.metrics import Metrics
from roseplay.serve.model_names import ModelNames
from roseplay.serve.served import Served

if TYPE_CHECKING:
    from roseplay.serve.traces import Traces  # needs an extra

_log = logging.getLogger("roseplay.requests")
_METHODS = frozenset(HTTPMethod)  # others count as one: clients may send any word, and every label is kept
_BROKE_OFF = "roseplay_broke_off"  # key in the ASGI scope
_TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class Monitor:
    """Follows an engine's telemetry from ``start`` to ``close``, and counts the server's replies.

    Args:
        log_requests: whether to log each request that ends.
        traces: receives the engine's events; closed with the monitor.
        names: of the model for clients; the first is the label of metrics, see ``ModelNames``.
    """

    def __init__(
        self, served: Served, *, log_requests: bool = False, traces: Traces | None = None, names: Sequence[str] = ()
    ) -> None:
        self._served, self._traces, self._names = served, traces, ModelNames(names)
        self._metrics: Metrics | None = None  # created when an engine is running, since its model is a label
        self._telemetry: Telemetry | None = None  # of that engine
        self._making = threading.Lock()
        self._http = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._http)
        prometheus_client.PlatformCollector(registry=self._http)
        self._replies = prometheus_client.Counter(
            "http_requests", "Replies, by route, method and class of status.", ["handler", "method", "status"],
            registry=self._http,
        )  # fmt: skip
        self._durations = prometheus_client.Histogram(
            "http_request_duration_seconds", "From a request to the end of its reply.", ["handler", "method"],
            registry=self._http,
        )  # fmt: skip
        takers: list[Callable[[TelemetryEvent], None]] = [self._take]
        if log_requests:
            takers.append(log_request)
        if traces is not None:
            takers.append(traces.take)
        self._follower = Follower(lambda: served.engine, *takers, begin=self._begin)

    def start(self) -> None:
        self._follower.start()

    def close(self) -> None:
        self._follower.close()
        if self._traces is not None:
            self._traces.close()

    def _take(self, event: TelemetryEvent) -> None:
        self._engine_metrics().take(event)

    def _begin(self, engine: EngineLike) -> None:
        """Begin an engine's figures at 0, with its model as their label."""
        with self._making:  # several threads may be the first
            if self._metrics is None or self._telemetry is not engine.telemetry:
                self._telemetry = engine.telemetry
                name, kv_dtype = self._names.listed(engine)[0], engine.config.kv_dtype
                self._metrics = Metrics(engine.info, model_name=name, kv_dtype=kv_dtype)

    def _engine_metrics(self) -> Metrics:
        if self._metrics is None:
            self._begin(self._served.engine)
        assert self._metrics is not None
        return self._metrics

    def replied(self, handler: str, method: str, status: int, path: str, seconds: float) -> None:
        """Count one reply, which took ``seconds``."""
        self._durations.labels(handler, method).observe(seconds)
        self._replies.labels(handler, method, f"{status // 100}xx").inc()
        if status == 429 and path.startswith(f"{PREFIX}/"):
            self.rejected()

    def rejected(self) -> None:
        self._engine_metrics().rejected()

    def exposition(self) -> bytes:
        """Returns everything in Prometheus' text format. Raises ``EngineError`` while the engine is starting."""
        self._follower.catch_up()
        return self.engine_exposition() + prometheus_client.generate_latest(self._http)

    def engine_exposition(self) -> bytes:
        """Returns only the engine's families."""
        metrics = self._engine_metrics()
        metrics.look(self._served.engine.num_unfinished)
        return prometheus_client.generate_latest(metrics.registry)


def metrics_router(monitor: Monitor) -> APIRouter:
    """Returns the route that Prometheus scrapes."""
    router = APIRouter()

    @router.get("/metrics")
    def metrics() -> Response:
        """Figures of the engine and of the server, under vLLM's names.

        In the text format, whatever else a scraper would take: as OpenMetrics the library writes vLLM's colons as underscores.
        """
        try:
            body = monitor.exposition()
        except EngineError as error:
            raise HTTPException(503, str(error)) from None
        return Response(body, headers={"Content-Type": _TEXT_FORMAT, "Cache-Control": "no-store"})

    return router


def broke_off(scope: Scope) -> None:
    """Count the reply to a request as a server error, although its status has been sent."""
    scope[_BROKE_OFF] = True


class ReplyCounter:
    """ASGI middleware that counts the replies of the routes behind it."""

    def __init__(self, app: ASGIApp, monitor: Monitor) -> None:
        self._app, self._monitor = app, monitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        status = 500  # of a route that fails before it replies

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            handler: Any = getattr(scope.get("route"), "path", "none")
            status = 500 if _BROKE_OFF in scope else status
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._monitor.replied(str(handler), method, status, scope["path"], time.monotonic() - began)


def log_request(event: TelemetryEvent) -> None:
    """Log the sizes and times of a request that has ended, but none of its text."""
    if not isinstance(event, RequestEvent) or event.kind != "finished" or event.stream is None:
        return
    stream = event.stream
    metrics, reason = stream.metrics, stream.finish_reason
    why = f" ({stream.error})" if stream.error else ""
    _log.info(
        "request %d: %s%s, prompt %d tokens (%d cached), answer %d, queue %s, TTFT %s, TPOT %s, E2E %s",
        *(event.request_id, reason, why, metrics.prompt_tokens, metrics.saved_tokens, metrics.completion_tokens),
        *map(_ms, (metrics.queue_s, metrics.ttft_s, metrics.tpot_s, metrics.e2e_s)),
    )


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.1f} ms"
