"""The page's server: roseplay's routes first, Gradio's page mounted behind them."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

# Before gradio is imported, which would report its start to two hosts on the internet.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# After each queued event it would aggregate all earlier ones, in the page's process.
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000")

import anyio.to_thread
import gradio as gr
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from roseplay.engine.errors import EngineError
from roseplay.lab.document import MAX_BYTES
from roseplay.play.chats import max_prompt_chars
from roseplay.play.engine_start import EngineStart
from roseplay.play.page import build_page, page_head
from roseplay.play.playground import Playground
from roseplay.play.web import assets
from roseplay.play.web.bodies import MAX_BODY, Bodies
from roseplay.play.web.gradio_gate import GradioGate
from roseplay.play.web.guard import Guard
from roseplay.play.web.lab_routes import lab_router
from roseplay.play.web.recording_routes import add_recording_routes
from roseplay.play.web.sampling_routes import sampling_router
from roseplay.play.web.start_gate import StartGate
from roseplay.play.web.traffic_routes import PREFIX as TRAFFIC
from roseplay.play.web.traffic_routes import traffic_router
from roseplay.serve.api import api_router
from roseplay.texts import one_line, shown
from roseplay.traffic import own

JOBS = 512  # concurrent calls in Gradio's queue; each chat that a program streams is one
MAX_QUEUED = 1000
SESSIONS = 64  # of which Gradio keeps a copy of the page's configuration, half a MB each; its default is 10,000
HEALTH_S = 1.0  # for the engine to reply whether it is healthy
HEALTH_WITHIN_S = 2.0  # for the route in any case
GZIP_FROM = 1000  # bytes of a poll's reply; its rows of numbers shrink to a third in a fraction of a millisecond


def create_app(playground: Playground, hosts: Iterable[str], start: EngineStart | None = None) -> FastAPI:
    """Returns the application of a ``Playground`` or a ``ReplayServer``, which it starts and closes.

    Args:
        hosts: names of the server, see ``guard.allowed_hosts``.
        start: of the engine, where ``playground`` is a ``StartingPlayground``.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        playground.start()
        try:
            yield
        finally:
            playground.close()

    page = build_page(playground)
    page.max_threads = JOBS
    page.state_session_capacity = SESSIONS  # sessions hold no state of roseplay, so nothing is lost with one
    page.queue(default_concurrency_limit=None, max_size=MAX_QUEUED)
    app = FastAPI(title="roseplay", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_exception_handler(RequestValidationError, _say_what_is_invalid)
    app.add_exception_handler(HTTPException, _say_in_one_line)
    # The last one added runs first.
    app.add_middleware(GradioGate, page=page)
    app.add_middleware(Bodies, max_bytes=partial(_max_body, playground))
    if start is not None:
        app.add_middleware(StartGate, start=start)
    app.add_middleware(Guard, hosts=set(hosts))
    app.include_router(assets.router)
    _add_routes(app, playground)
    app.include_router(sampling_router(playground.chats))
    app.include_router(traffic_router(playground))
    if not playground.replaying:
        app.include_router(lab_router(playground.lab))
        app.include_router(api_router(playground))
    add_recording_routes(app, playground)
    return gr.mount_gradio_app(
        app,
        page,
        path="/",
        head=page_head(playground),
        theme=gr.themes.Base(font=["IBM Plex Sans", "sans-serif"], font_mono=["IBM Plex Mono", "monospace"]),
        favicon_path=str(assets.STATIC / "icon.svg"),
        footer_links=[],
        ssr_mode=False,
        run_history=False,
    )


def _add_routes(app: FastAPI, playground: Playground) -> None:
    @app.get("/ui/delta")
    async def delta(request: Request, since: int = 0, boot: str = "", tab: str = "", have: str = "") -> Response:
        body = playground.delta(since, boot=boot, tab_id=tab, have=have)
        headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
        if len(body) > GZIP_FROM and "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["Content-Encoding"] = gzip.compress(body, compresslevel=1, mtime=0), "gzip"
        return Response(body, media_type="application/json", headers=headers)

    @app.get("/ui/block/{number}")
    def block(number: int, response: Response, tab: str = "") -> dict[str, Any]:
        response.headers["Cache-Control"] = "no-store"
        try:
            return playground.block(number, tab)
        except ValueError as error:
            raise HTTPException(404, str(error)) from None
        except (TimeoutError, EngineError) as error:
            raise HTTPException(503, str(error)) from None

    @app.get("/ui/prompt/{request_id}")
    def prompt(request_id: int, response: Response, tab: str = "") -> dict[str, Any]:
        response.headers["Cache-Control"] = "no-store"
        try:
            return playground.prompt(request_id, tab)
        except ValueError as error:
            raise HTTPException(404, str(error)) from None

    check = HealthCheck(playground.engine)

    @app.get("/health")
    async def health(response: Response) -> dict[str, str]:
        ok, detail = await check()
        info = playground.engine.info
        response.status_code = 200 if ok else 503
        response.headers["Cache-Control"] = "no-store"
        return {
            "status": "ok" if ok else detail,
            "detail": detail,
            "boot_id": playground.boot_id,
            "model": info.model,
            "device": info.device,
            "dtype": info.dtype,
        }


class HealthCheck:
    """Asks the engine whether it is healthy, in a thread of its own, once for all concurrent requests."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._thread: anyio.CapacityLimiter | None = None  # can only be made while an event loop runs
        self._asking: asyncio.Future[Any] | None = None

    async def __call__(self) -> tuple[bool, str]:
        """Returns whether it is, and what it does or what is wrong, within ``HEALTH_WITHIN_S``."""
        if self._thread is None:
            self._thread = anyio.CapacityLimiter(1)
        if self._asking is None or self._asking.done():
            asking = anyio.to_thread.run_sync(self._engine.health, HEALTH_S, limiter=self._thread)
            self._asking = asyncio.ensure_future(asking)
        try:
            async with asyncio.timeout(HEALTH_WITHIN_S):
                found = await asyncio.shield(self._asking)
        except TimeoutError:
            return False, f"the engine did not say within {HEALTH_WITHIN_S:g} s whether it is well"
        return found.ok, found.detail


def _max_body(playground: Playground, path: str) -> int:
    """Returns the most bytes of a body: a prompt in fully escaped JSON, a whole result of the lab, or a traffic file."""
    if path in (f"{TRAFFIC}/check", f"{TRAFFIC}/play"):
        return own.MAX_BYTES
    if path in ("/ui/lab/open", "/ui/lab/summary", "/ui/lab/run"):
        return MAX_BYTES
    return max(MAX_BODY, 6 * max_prompt_chars(playground.engine.info.max_model_len) + (1 << 16))


async def _say_what_is_invalid(request: Request, error: Exception) -> Response:
    """Returns FastAPI's list of faults as one line."""
    assert isinstance(error, RequestValidationError)
    faults = (f"{fault['loc'][-1]} is {shown(fault.get('input'))}: {fault['msg']}" for fault in error.errors())
    return JSONResponse({"detail": "; ".join(faults)}, 422)


async def _say_in_one_line(request: Request, error: Exception) -> Response:
    """Returns a refusal as one line; it may repeat what was sent."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": one_line(error.detail)}, error.status_code)
