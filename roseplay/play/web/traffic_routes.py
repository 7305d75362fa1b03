"""``POST /ui/traffic/…``: reads a traffic file from the page and plays it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response

from roseplay.engine.errors import EngineBusyError
from roseplay.play.page_host import PageHost
from roseplay.play.session import check_tab_id
from roseplay.play.traffic_service import TrafficService

PREFIX = "/ui/traffic"


def traffic_router(host: PageHost) -> APIRouter:
    """Returns the routes for a tab's own traffic. The body is the content of a file in the format of ``traffic.own``.

    ``check`` returns the number of requests and their time span; ``play`` the figures of the traffic that it begins,
    which the tab's polls also have; ``stop`` sends no more of it. ``seed`` is for prompts given by their lengths:
    without one, they differ each time.
    """
    router = APIRouter(prefix=PREFIX)

    async def asked(response: Response, act: Callable[[TrafficService], Any]) -> Any:
        """Read a file in a thread for submissions, since long ones take a while, and act on it."""
        response.headers["Cache-Control"] = "no-store"
        try:
            return await host.submissions.run(lambda: act(host.playground.traffic))
        except EngineBusyError as error:
            raise HTTPException(429, str(error)) from None
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

    @router.post("/check")
    async def check(request: Request, response: Response, name: str = "") -> dict[str, Any]:
        body = await request.body()
        found = await asked(response, lambda traffic: traffic.check_own(body, name))
        return dict(found.figures())

    @router.post("/play")
    async def play(
        request: Request, response: Response, name: str = "", tab: str = "", seed: int | None = None
    ) -> dict[str, Any]:
        body = await request.body()
        begun = await asked(response, lambda traffic: traffic.start_own(body, name=name, seed=seed, tab_id=tab))
        return dict(begun.figures())

    @router.post("/stop")
    async def stop(response: Response, tab: str = "") -> dict[str, bool]:
        return {"stopped": bool(await asked(response, lambda traffic: traffic.stop("file", check_tab_id(tab))))}

    return router
