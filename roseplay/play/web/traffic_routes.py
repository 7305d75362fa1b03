"""``POST /ui/traffic/…``: reads a traffic file from the page and plays it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from roseplay.play.page_host import PageHost
from roseplay.play.session import check_tab_id
from roseplay.play.web.calls import NO_STORE, http_refusals

PREFIX = "/ui/traffic"


def traffic_router(host: PageHost) -> APIRouter:
    """Returns the routes for a tab's own traffic. The body is the content of a file in the format of ``traffic.own``.

    ``check`` returns the number of requests and their time span; ``play`` the figures of the traffic that it begins,
    which the tab's polls also have; ``stop`` sends no more of it. ``seed`` is for prompts given by their lengths:
    without one, they differ each time.
    """
    router = APIRouter(prefix=PREFIX, dependencies=[NO_STORE])

    @router.post("/check")
    async def check(request: Request, name: str = "") -> dict[str, object]:
        body = await request.body()
        with http_refusals():
            return dict((await host.submissions.run(lambda: host.playground.traffic.check_own(body, name))).figures())

    @router.post("/play")
    async def play(request: Request, name: str = "", tab: str = "", seed: int | None = None) -> dict[str, object]:
        body = await request.body()

        def begin() -> Any:
            return host.playground.traffic.start_own(body, name=name, seed=seed, tab_id=tab)

        with http_refusals():
            return dict((await host.submissions.run(begin)).figures())

    @router.post("/stop")
    async def stop(tab: str = "") -> dict[str, bool]:
        with http_refusals():
            return {"stopped": bool(host.playground.traffic.stop("file", check_tab_id(tab)))}

    return router
