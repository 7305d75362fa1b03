"""``/ui/models``: lists the models that can be loaded, loads one in place of the current one, and cancels a load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from roseplay.formats.json_text import strict_json
from roseplay.play.engine_host import LoadBusyError
from roseplay.play.model_picker import ModelPicker, NotOfferedError


def model_router(picker: ModelPicker) -> APIRouter:
    """Returns the routes, which also answer while a model is being loaded."""
    router = APIRouter(prefix="/ui/models")

    async def done(response: Response, act: Callable[..., str], *args: Any) -> str:
        response.headers["Cache-Control"] = "no-store"
        response.status_code = 202
        try:
            return await run_in_threadpool(act, *args)
        except LoadBusyError as error:
            raise HTTPException(409, str(error)) from None
        except NotOfferedError as error:
            raise HTTPException(403, str(error)) from None
        except (ValueError, TypeError, OSError, OverflowError) as error:
            raise HTTPException(422, str(error)) from None

    @router.get("")
    def models(response: Response) -> dict[str, Any]:
        response.headers["Cache-Control"] = "no-store"
        return picker.figures()

    @router.post("/load")
    async def load(request: Request, response: Response) -> dict[str, str]:
        try:
            body = strict_json(await request.body())
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        return {"loading": await done(response, picker.load, body)}

    @router.post("/cancel")
    async def cancel(response: Response) -> dict[str, str]:
        return {"loading": await done(response, picker.cancel)}

    return router
