"""``/reset_prefix_cache``: clears the prefix cache, for example between a benchmark's runs. vLLM has the same route."""

from __future__ import annotations

from fastapi import APIRouter, Response

from roseplay.serve.errors import OpenAIRoute
from roseplay.serve.served import Served

PATH = "/reset_prefix_cache"


def prefix_cache_router(served: Served) -> APIRouter:
    """Returns the route that clears the cache. Running requests keep their blocks."""
    router = APIRouter(route_class=OpenAIRoute)

    @router.post(PATH)
    def reset() -> Response:
        """Clear the prefix cache; an empty reply."""
        served.engine.clear_cache()
        return Response()

    return router
