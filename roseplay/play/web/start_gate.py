"""Replies while no engine is live: the page and the start's progress, otherwise that the engine is starting."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from roseplay.play.engine_host import EngineHost
from roseplay.play.tab import added_tabs
from roseplay.serve.errors import refusal
from roseplay.serve.keys import without_key

_FRESH = {"Cache-Control": "no-store"}
_NEEDS_ENGINE = ("/ui/block/", "/ui/prompt/", "/ui/export", "/ui/recording", "/v1/", "/metrics")
_NEEDS_NONE = ("/ui/models",)  # with any method
_RETRY_AFTER_S = 2


def start_reply(scope: Scope, host: EngineHost) -> Response | None:
    """Returns the reply to an HTTP request while no engine is live: 503 for everything that needs one, else None.

    ``/ui/delta`` returns ``{"start": …}`` for the page: ``StartStatus.figures`` and, as ``back``, the model that is
    loaded again if the start is cancelled. ``/health`` returns the status ``starting`` or ``failed``.
    """
    path, status, reading = scope["path"], host.status, scope["method"] in ("GET", "HEAD")
    if reading and path == "/ui/delta":
        host.asked()
        return JSONResponse({"start": {**status.figures(), "back": host.goes_back_to}}, headers=_FRESH)
    if reading and path in ("/health", "/ready"):
        body = {"status": "starting" if status.failure is None else "failed"}
        if not without_key(scope):
            body |= {"detail": status.sentence, "model": status.model}
        return JSONResponse(body, 503, _FRESH)
    needs_engine = (*_NEEDS_ENGINE, *(f"/ui/{tab.name}" for tab in added_tabs()))
    if not path.startswith(_NEEDS_NONE) and (not reading or path.startswith(needs_engine)):
        return refusal(path, 503, status.sentence, "starting", {**_FRESH, "Retry-After": str(_RETRY_AFTER_S)})
    if path == "/" and "text/html" in Headers(scope=scope).get("accept", ""):
        host.asked()
    return None


class StartGate:
    """ASGI middleware: while no engine is live, replies to what needs one, see ``start_reply``."""

    def __init__(self, app: ASGIApp, host: EngineHost) -> None:
        self._app, self._host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = None if self._host.live or scope["type"] != "http" else start_reply(scope, self._host)
        await (reply or self._app)(scope, receive, send)
