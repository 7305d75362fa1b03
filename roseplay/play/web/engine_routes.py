"""What the page asks of the engine: polls, KV blocks, prompts, where a simulation's numbers come from, what slows
a step down, and another model."""

from __future__ import annotations

import gzip
from html import escape
from typing import TYPE_CHECKING

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from roseplay.core.info import EngineInfo
from roseplay.engine.hardware import hardware
from roseplay.formats.json_text import strict_json
from roseplay.formats.report_page import heading, report_page, table
from roseplay.play.page_host import PageHost
from roseplay.play.web.calls import NO_STORE, http_refusals
from roseplay.traffic.environment import environment

if TYPE_CHECKING:
    from roseplay.play.model_picker import ModelPicker  # imports transformers

GZIP_FROM = 1000  # bytes of a poll's reply; its rows of numbers shrink to a third in a fraction of a millisecond


def engine_router(host: PageHost) -> APIRouter:
    router = APIRouter(prefix="/ui", dependencies=[NO_STORE])

    @router.get("/delta")
    async def delta(request: Request, since: int = 0, boot: str = "", tab: str = "", have: str = "") -> Response:
        body = host.delta(since, boot=boot, tab_id=tab, have=have)
        headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
        if len(body) > GZIP_FROM and "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["Content-Encoding"] = gzip.compress(body, compresslevel=1, mtime=0), "gzip"
        return Response(body, media_type="application/json", headers=headers)

    @router.get("/block/{number}")
    def block(number: int, tab: str = "") -> dict[str, object]:
        with http_refusals(404):
            return host.playground.block(number, tab)

    @router.get("/prompt/{request_id}")
    def prompt(request_id: int, tab: str = "") -> dict[str, object]:
        with http_refusals(404):
            return host.playground.prompt(request_id, tab)

    @router.get("/simulation")
    def simulation() -> dict[str, object]:
        if host.replaying or host.engine.info.simulated is None:
            raise HTTPException(404, "no simulated engine is running here")
        engine = host.engine
        with http_refusals(409):  # its calibration file is gone
            return hardware().origins(engine.model, engine.config, engine.info.num_blocks)

    @router.get("/doctor")
    def doctor() -> Response:
        info = host.engine.info
        return Response(_doctor_page(info, here=not host.replaying and info.server is None), media_type="text/html")

    return router


def model_router(picker: ModelPicker) -> APIRouter:
    """Returns ``/ui/models``, which also answers while a model is being loaded: lists, loads and cancels."""
    router = APIRouter(prefix="/ui/models", dependencies=[NO_STORE])

    @router.get("")
    def models() -> dict[str, object]:
        return picker.figures()

    @router.post("/load", status_code=202)
    async def load(request: Request) -> dict[str, str]:
        body = await request.body()
        with http_refusals():
            return {"loading": await run_in_threadpool(lambda: picker.load(strict_json(body)))}

    @router.post("/cancel", status_code=202)
    def cancel() -> dict[str, str]:
        with http_refusals():
            return {"loading": picker.cancel()}

    return router


def _doctor_page(info: EngineInfo, *, here: bool) -> str:
    """Returns an HTML page: how an engine computes each part of a step, why, and what makes it slow.

    Args:
        here: whether it runs on this machine, which is then described too.
    """
    title = f"Doctor: {info.model} on {info.device}"
    rows = [
        [escape(it.part), escape(it.chosen), escape(it.why), f'<b class="b">{escape(it.slow or "")}</b>']
        for it in info.choices
    ]
    parts = [
        f"<h1>{escape(title)}</h1>",
        "<p>In a terminal, <code>roseplay doctor</code> also measures the machine and checks the answers.</p>",
        heading("Parts of a step"),
        table(rows, ("part", "how it is computed", "why", "what makes it slow"), notes=True)
        if rows
        else "<p>This engine does not report how it computes them.</p>",
    ]
    if here:
        about = environment(threads=info.threads, device=info.device)
        parts += [heading("Machine"), table([[escape(name), escape(str(value))] for name, value in about.items()])]
    return report_page(title, parts)
