"""What the page asks of the engine: polls, KV blocks, prompts, where a simulation's numbers come from, and another model."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from roseplay.engine.simulated import origins_of
from roseplay.formats.json_text import strict_json
from roseplay.play.page_host import PageHost
from roseplay.play.web.calls import NO_STORE, http_refusals

if TYPE_CHECKING:
    from roseplay.play.model_picker import ModelPicker  # imports transformers

GZIP_FROM = 1000  # bytes of a poll's reply; its rows of numbers shrink to a third in a fraction of a millisecond


def engine_router(host: PageHost) -> APIRouter:
    """Returns the routes."""
    router = APIRouter(prefix="/ui", dependencies=[NO_STORE])

    @router.get("/delta")
    async def delta(request: Request, since: int = 0, boot: str = "", tab: str = "", have: str = "") -> Response:
        body = host.delta(since, boot=boot, tab_id=tab, have=have)
        headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
        if len(body) > GZIP_FROM and "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["Content-Encoding"] = gzip.compress(body, compresslevel=1, mtime=0), "gzip"
        return Response(body, media_type="application/json", headers=headers)

    @router.get("/block/{number}")
    def block(number: int, tab: str = "") -> dict[str, Any]:
        with http_refusals(404):
            return host.playground.block(number, tab)

    @router.get("/prompt/{request_id}")
    def prompt(request_id: int, tab: str = "") -> dict[str, Any]:
        with http_refusals(404):
            return host.playground.prompt(request_id, tab)

    @router.get("/simulation")
    def simulation() -> dict[str, Any]:
        if host.replaying or host.engine.info.simulated is None:
            raise HTTPException(404, "no simulated engine is running here")
        engine = host.engine
        with http_refusals(409):  # its calibration file is gone
            return origins_of(engine.model, engine.config, engine.info.num_blocks)

    return router


def model_router(picker: ModelPicker) -> APIRouter:
    """Returns ``/ui/models``, which also answers while a model is being loaded: lists, loads and cancels."""
    router = APIRouter(prefix="/ui/models", dependencies=[NO_STORE])

    @router.get("")
    def models() -> dict[str, Any]:
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
