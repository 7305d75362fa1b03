"""The page's server: roseplay's routes first, Gradio's page mounted behind them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

# Set before importing Gradio, which would otherwise report its start to two hosts on the internet.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# By default it aggregates, after each queued event, all earlier ones in the page's process.
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000")

import gradio as gr
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from roseplay.engine.errors import EngineError
from roseplay.formats.invalid import fault_text
from roseplay.formats.text import one_line
from roseplay.play.chats import max_prompt_chars
from roseplay.play.engine_host import EngineHost
from roseplay.play.markup import OPENING
from roseplay.play.page import build_page, page_head
from roseplay.play.page_host import PageHost
from roseplay.play.playground import Playground
from roseplay.play.tab import added_tabs
from roseplay.play.web import api, assets
from roseplay.play.web.endpoints import call_router
from roseplay.play.web.engine_routes import engine_router, model_router
from roseplay.play.web.gradio_gate import GradioGate
from roseplay.play.web.recording_routes import add_recording_routes
from roseplay.play.web.sampling_routes import sampling_router
from roseplay.play.web.start_gate import StartGate, start_reply
from roseplay.play.web.traffic_routes import PREFIX as TRAFFIC
from roseplay.play.web.traffic_routes import traffic_router
from roseplay.serve.admission import AdmissionGate
from roseplay.serve.app import add_gates, add_program_routes
from roseplay.serve.body_limits import MAX_BODY, BodyLimits
from roseplay.serve.drain import Drain
from roseplay.serve.errors import refusal
from roseplay.serve.health import health_router
from roseplay.serve.monitor import Monitor
from roseplay.traffic import own

if TYPE_CHECKING:
    from roseplay.play.model_picker import ModelPicker  # imports transformers
    from roseplay.serve.traces import Traces  # needs an extra

JOBS, MAX_QUEUED = 512, 1000  # in Gradio's queue: concurrent calls (each chat of a program is one), and queued ones
SESSIONS = 64  # for each, Gradio keeps a copy of the page's configuration of half a MB; its default is 10,000


def create_app(
    host: PageHost,
    hosts: Iterable[str],
    *,
    picker: ModelPicker | None = None,
    key: str | None = None,
    drain: Drain | None = None,
    log_requests: bool = False,
    traces: Traces | None = None,
    has_api: bool = True,
    names: Sequence[str] = (),
    origins: Collection[str] = (),
    view: str | None = None,
) -> FastAPI:
    """Returns the application of a page; it starts and closes a ``Playground`` that is passed as ``host``.

    Args:
        hosts: names of the server, see ``guard.allowed_hosts``.
        picker: of the host's model, if visitors may choose it.
        key: required of every client, unless None.
        drain: refuses new API requests once it has begun.
        traces: records the API's requests; closed with the application.
        view: which controls the page shows at first, see ``page_head``.
        has_api: whether programs are served below ``/v1``; not if another server's API is shown.
        names: under which they may also ask for the model, see ``ModelNames``.
        origins: web sites whose pages may use the API, see ``Guard``.
    """
    playground = host if isinstance(host, Playground) else None  # an ``EngineHost`` begins before its page is built
    served = has_api and not host.replaying
    monitor = Monitor(host, log_requests=log_requests, traces=traces, names=names) if served else None
    drain = Drain() if drain is None else drain

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if playground is not None:
            playground.start()
        if monitor is not None:
            monitor.start()
        try:
            yield
        finally:
            if monitor is not None:
                await asyncio.to_thread(monitor.close)  # requests of disconnected clients may still have to be aborted
            if playground is not None:
                playground.close()

    page = build_page(host, picks=picker is not None)
    page.max_threads = JOBS
    page.state_session_capacity = SESSIONS  # sessions hold no state of roseplay, so dropping one loses nothing
    page.queue(default_concurrency_limit=None, max_size=MAX_QUEUED)
    app = FastAPI(title="roseplay", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    _add_refusals(app, host)
    # The middleware added last runs first.
    app.add_middleware(GradioGate, page=page, head=page_head(host, view) + OPENING)
    app.add_middleware(BodyLimits, max_bytes=partial(_max_body, host))
    if monitor is not None:
        app.add_middleware(AdmissionGate, served=host)
    if isinstance(host, EngineHost):
        app.add_middleware(StartGate, host=host)
    add_gates(app, hosts, key, drain, monitor, origins)
    app.include_router(assets.router)
    app.include_router(health_router(host, drain))
    app.include_router(engine_router(host))
    app.include_router(call_router(api.endpoints(host)))
    app.include_router(sampling_router(host))
    app.include_router(traffic_router(host))
    if not host.replaying:  # their services need an engine
        for tab in added_tabs():
            app.include_router(tab.router(host))
    if picker is not None:
        app.include_router(model_router(picker))
    if monitor is not None:
        add_program_routes(app, host, monitor, names, traces)
    add_recording_routes(app, host)
    return gr.mount_gradio_app(
        app,
        page,
        path="/",
        theme=gr.themes.Base(font=["IBM Plex Sans", "sans-serif"], font_mono=["IBM Plex Mono", "monospace"]),
        favicon_path=str(assets.STATIC / "icon.svg"),
        footer_links=[],
        ssr_mode=False,
        run_history=False,
    )


def _max_body(host: PageHost, path: str) -> int:
    """Returns the most bytes of a body: a prompt in fully escaped JSON, what a tab takes, or a traffic file."""
    if path in (f"{TRAFFIC}/check", f"{TRAFFIC}/play"):
        return own.MAX_BYTES
    for tab in added_tabs():
        if path.startswith(f"/ui/{tab.name}/"):
            return tab.max_body
    try:
        longest = host.engine.info.max_model_len
    except EngineError:  # the engine ended after the request was admitted
        return MAX_BODY
    return max(MAX_BODY, 6 * max_prompt_chars(longest) + (1 << 16))


def _add_refusals(app: FastAPI, host: PageHost) -> None:
    """Make the app reply to errors that routes raise with one line."""
    app.add_exception_handler(RequestValidationError, _say_what_is_invalid)
    app.add_exception_handler(HTTPException, _say_in_one_line)

    async def say_that_none_is_live(request: Request, error: Exception) -> Response:
        """Answers requests that were admitted just before the engine ended because another model is loaded."""
        if isinstance(host, EngineHost) and not host.live and (reply := start_reply(request.scope, host)):
            return reply
        return refusal(request.url.path, 503, one_line(error), "starting")

    app.add_exception_handler(EngineError, say_that_none_is_live)


async def _say_what_is_invalid(request: Request, error: Exception) -> Response:
    """Returns the first of FastAPI's validation errors as one line."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": fault_text(error.errors()[0], skip=1)}, 422)


async def _say_in_one_line(request: Request, error: Exception) -> Response:
    """Returns a refusal as one line; its text may repeat input."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": one_line(error.detail)}, error.status_code)
