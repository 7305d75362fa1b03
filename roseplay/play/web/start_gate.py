"""Replies while no engine is live: the page and the start's progress, otherwise that the engine is starting."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from roseplay.play.engine_host import EngineHost
from roseplay.serve.errors import refusal
from roseplay.serve.keys import without_key

_FRESH = {"Cache-Control": "no-store"}
_NEEDS_ENGINE = (
    "/ui/block/",
    "/ui/prompt/",
    "/ui/lab",
    "/ui/export",
    "/ui/recording",
    "/v1/",
    "/metrics",
)
_NEEDS_NONE = ("/ui/models",)  # with any method
_RETRY_AFTER_S = 2


class StartGate:
    """ASGI middleware: while no engine is live, 503 for everything that needs one.

    ``/ui/delta`` returns ``{"start": …}`` for the page: ``StartStatus.figures`` and, as ``back``, the model that is
    loaded again if the start is cancelled. ``/health`` returns the status ``starting`` or ``failed``.
    """

    def __init__(self, app: ASGIApp, host: EngineHost) -> None:
        self._app, self._host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = self._host
        if host.live or scope["type"] not in ("http", "websocket") or scope["path"].startswith(_NEEDS_NONE):
            await self._app(scope, receive, send)
            return
        path, status = scope["path"], host.status
        reading = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if reading and path == "/ui/delta":
            host.asked()
            figures = {**status.figures(), "back": host.goes_back_to}
            await JSONResponse({"start": figures}, headers=_FRESH)(scope, receive, send)
        elif reading and path in ("/health", "/ready"):
            state = "starting" if status.failure is None else "failed"
            said = {"status": state}
            if not without_key(scope):
                said |= {"detail": status.sentence, "model": status.model}
            await JSONResponse(said, 503, _FRESH)(scope, receive, send)
        elif scope["type"] == "http" and (not reading or path.startswith(_NEEDS_ENGINE)):
            headers = {**_FRESH, "Retry-After": str(_RETRY_AFTER_S)}
            await refusal(path, 503, status.sentence, "starting", headers)(scope, receive, send)
        else:
            if path == "/" and "text/html" in Headers(scope=scope).get("accept", ""):
                host.asked()
            await self._app(scope, receive, send)
