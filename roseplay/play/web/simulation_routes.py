"""``GET /ui/simulation``: where every number of a simulated engine comes from."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Response

from roseplay.engine.simulated import deployment
from roseplay.play.page_host import PageHost


def simulation_router(host: PageHost) -> APIRouter:
    """Returns the route; it replies 404 with a sentence where the engine computes its model."""
    router = APIRouter(prefix="/ui")

    @router.get("/simulation")
    def simulation(response: Response) -> dict[str, Any]:
        from roseplay.sim.origins import origins

        response.headers["Cache-Control"] = "no-store"
        if host.replaying or host.engine.info.simulated is None:
            raise HTTPException(404, "no simulated engine is running here")
        engine = host.engine
        cost, evidence = deployment(engine.model, engine.config)
        return origins(cost, evidence, engine.config, engine.info.num_blocks)

    return router
