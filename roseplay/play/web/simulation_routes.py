"""``GET /ui/simulation``: where every number of a simulated engine comes from."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Response

from roseplay.engine.simulated import origins_of
from roseplay.play.page_host import PageHost


def simulation_router(host: PageHost) -> APIRouter:
    """Returns the route; it replies 404 where the engine computes its model, 409 where its calibration file is gone."""
    router = APIRouter(prefix="/ui")

    @router.get("/simulation")
    def simulation(response: Response) -> dict[str, Any]:
        response.headers["Cache-Control"] = "no-store"
        if host.replaying or host.engine.info.simulated is None:
            raise HTTPException(404, "no simulated engine is running here")
        engine = host.engine
        try:
            return origins_of(engine.model, engine.config, engine.info.num_blocks)
        except ValueError as error:
            raise HTTPException(409, str(error)) from None

    return router
