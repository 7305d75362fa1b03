"""``POST /ui/sampling``: the settings for a tab's answers, for the sampling panel and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from roseplay.formats.json_text import strict_json
from roseplay.formats.text import shown
from roseplay.play.answer_settings import NAMES, read, whole_number
from roseplay.play.chat_service import ChatService
from roseplay.play.page_host import PageHost
from roseplay.play.session import check_lane, check_tab_id


def sampling_router(host: PageHost) -> APIRouter:
    """Returns the route ``POST /ui/sampling``, which changes or resets the settings of a tab's lane.

    It takes ``{"tab": id, "lane": 0 for all lanes, "changes": {name: value}, "reset": true or false}``. Each setting is
    accepted or refused separately. It returns ``{"values": {name: value}, "sources": {name: where it comes from, see
    ``ChatService.sources``}, "own": number of the lane's own settings, "refused": {name: why}}``.
    """
    router = APIRouter(prefix="/ui")

    @router.post("/sampling")
    async def sampling(request: Request, response: Response) -> dict[str, Any]:
        response.headers["Cache-Control"] = "no-store"
        try:
            return await run_in_threadpool(_asked, host.chats, strict_json(await request.body()))
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

    return router


def _asked(chats: ChatService, asked: Any) -> dict[str, Any]:
    """Change or reset settings and return the reply; raises ``ValueError`` if the request, tab or lane is invalid."""
    if not isinstance(asked, Mapping):
        raise ValueError('the body must be a JSON object, such as {"tab": "…", "changes": {"temperature": 0.2}}')
    tab, changes, reset = asked.get("tab"), asked.get("changes", {}), asked.get("reset", False)
    lane = whole_number(asked.get("lane", 0), "lane")
    tab = check_tab_id(tab)
    if not isinstance(changes, Mapping):
        raise ValueError(f"changes is {shown(changes)}: use a JSON object")
    if not isinstance(reset, bool):
        raise ValueError(f"reset is {shown(reset)}: use true or false")
    if reset:
        chats.reset_settings(lane=lane, tab_id=tab)
    refused = _change(chats, changes, lane, tab)
    settings = chats.settings(tab, lane)
    return {
        "values": {name: getattr(settings, name) for name in NAMES},
        "sources": chats.sources(tab, lane),
        "own": len(chats.own_settings(tab, lane)),
        "refused": refused,
    }


def _change(chats: ChatService, changes: Mapping[str, Any], lane: int, tab: str) -> dict[str, str]:
    """Apply valid changes; returns why the others were refused."""
    check_lane(lane, least=0)
    refused = {}
    for name, value in changes.items():
        try:
            if read({name: value})[name] != getattr(chats.settings(tab, lane), name):
                chats.set_settings({name: value}, lane=lane, tab_id=tab)
        except ValueError as error:
            refused[name] = str(error)
    return refused
