"""The page's server: our own routes first, Gradio's page mounted behind them."""

from __future__ import annotations

import gzip
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

# Before gradio is imported: it would report its start to two hosts on the internet.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# After every queued event it would sum up all events so far, in the same process as the engine.
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000")

import gradio as gr
from fastapi import FastAPI, HTTPException, Request, Response

from roseplay.engine.errors import EngineError
from roseplay.play import assets
from roseplay.play.guard import Guard
from roseplay.play.lab.routes import lab_router
from roseplay.play.page import build_page, page_head
from roseplay.play.playground import Playground
from roseplay.play.recording.routes import add_recording_routes
from roseplay.play.settings import settings_router

GZIP_FROM = 1000  # bytes of a poll's reply: rows of numbers, which shrink to a third in a fraction of a millisecond


def create_app(playground: Playground, hosts: Iterable[str]) -> FastAPI:
    """The whole application, of a playground or of a ``Theatre``. It starts and stops the frames; the engine stays its maker's.

    Args:
        hosts: names the server goes by, see ``guard.allowed_hosts``.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        playground.start()
        try:
            yield
        finally:
            playground.close()

    app = FastAPI(title="roseplay", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_middleware(Guard, hosts=set(hosts))
    app.include_router(assets.router)
    _add_routes(app, playground)
    app.include_router(settings_router(playground.talk))
    if not playground.replaying:
        app.include_router(lab_router(playground.lab))
    add_recording_routes(app, playground)
    return gr.mount_gradio_app(
        app,
        build_page(playground),
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

    @app.get("/ui/health")
    async def health(response: Response) -> dict[str, str]:
        info, alive = playground.engine.info, playground.engine.alive
        response.status_code = 200 if alive else 503
        return {
            "status": "ok" if alive else "the engine has stopped",
            "boot_id": playground.boot_id,
            "model": info.model,
            "device": info.device,
            "dtype": info.dtype,
        }
