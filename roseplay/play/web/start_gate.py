"""What the server answers before the engine is live: the page and how far the start is, and else that it is starting."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from roseplay.play.engine_start import EngineStart
from roseplay.serve.errors import refusal
from roseplay.serve.keys import without_key

_FRESH = {"Cache-Control": "no-store"}
_NEEDS_ENGINE = (
    "/ui/block/",
    "/ui/prompt/",
    "/ui/lab",
    "/ui/export",
    "/ui/recording",
    "/gradio_api/file=",
    "/v1/",
    "/metrics",
)
_RETRY_AFTER_S = 2


class StartGate:
    """ASGI middleware: until the engine is live, 503 for everything that needs it.

    ``/ui/delta`` is answered with ``{"start": …}`` (see ``StartStatus.figures``), which the page shows; ``/health`` with the
    status ``starting`` or ``failed``.
    """

    def __init__(self, app: ASGIApp, start: EngineStart) -> None:
        self._app, self._start = app, start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = self._start
        if start.live or scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path, status = scope["path"], start.status
        reading = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if reading and path == "/ui/delta":
            start.asked()
            await JSONResponse({"start": status.figures()}, headers=_FRESH)(scope, receive, send)
        elif reading and path in ("/health", "/ready"):
            state = "starting" if status.failure is None else "failed"
            figures = {"status": state}
            if not without_key(scope):
                figures |= {"detail": status.sentence, "model": status.model}
            await JSONResponse(figures, 503, _FRESH)(scope, receive, send)
        elif scope["type"] == "http" and (not reading or path.startswith(_NEEDS_ENGINE)):
            headers = {**_FRESH, "Retry-After": str(_RETRY_AFTER_S)}
            body = refusal(path, 503, status.sentence, "starting")
            await JSONResponse(body, 503, headers)(scope, receive, send)
        else:
            if path == "/" and "text/html" in Headers(scope=scope).get("accept", ""):
                start.asked()
            await self._app(scope, receive, send)
