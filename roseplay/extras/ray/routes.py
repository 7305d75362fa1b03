"""``/v1/replicas``: what each replica is doing, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from roseplay.serve.errors import PREFIX, OpenAIRoute, refuse_other_methods

if TYPE_CHECKING:
    from roseplay.extras.ray.engine import RayEngine


def replicas_router(engine: RayEngine) -> APIRouter:
    """Returns the route of an ingress's replicas."""
    router = APIRouter(prefix=PREFIX, route_class=OpenAIRoute)

    @router.get("/replicas")
    def replicas() -> dict[str, Any]:
        """The figures of all replicas that answer, by their labels."""
        return {"object": "list", "data": [{"object": "replica", **one._asdict()} for one in engine.replicas()]}

    refuse_other_methods(router)
    return router
