"""``POST /ui/sampling``: the settings for a tab's answers, for the sampling panel and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from roseplay.play.answer_settings import NAMES, read
from roseplay.play.chat_service import ChatService
from roseplay.play.inputs import LaneNumber, TabId, body_of
from roseplay.play.page_host import PageHost
from roseplay.play.web.calls import NO_STORE


class SamplingOrder(BaseModel):
    """A change of the settings of a tab's lane, or of all its lanes for 0; ``reset`` goes before the changes."""

    tab: TabId
    lane: LaneNumber = 0
    changes: dict[str, Any] = {}
    reset: bool = False


def sampling_router(host: PageHost) -> APIRouter:
    """Returns the route ``POST /ui/sampling``, which changes or resets the settings of a tab's lane.

    It takes a ``SamplingOrder``. Each setting is accepted or refused separately. It returns ``{"values": {name: value},
    "sources": {name: where it comes from, see ``ChatService.sources``}, "own": number of the lane's own settings,
    "refused": {name: why}}``.
    """
    router = APIRouter(prefix="/ui", dependencies=[NO_STORE])

    @router.post("/sampling")
    async def sampling(order: Annotated[SamplingOrder, body_of(SamplingOrder)]) -> dict[str, object]:
        return await run_in_threadpool(_done, host.chats, order)

    return router


def _done(chats: ChatService, order: SamplingOrder) -> dict[str, object]:
    """Change or reset settings and return the reply."""
    tab, lane = order.tab, order.lane
    if order.reset:
        chats.reset_settings(lane=lane, tab_id=tab)
    refused = _change(chats, order.changes, lane, tab)
    settings = chats.settings(tab, lane)
    return {
        "values": {name: getattr(settings, name) for name in NAMES},
        "sources": chats.sources(tab, lane),
        "own": len(chats.own_settings(tab, lane)),
        "refused": refused,
    }


def _change(chats: ChatService, changes: Mapping[str, Any], lane: int, tab: str) -> dict[str, str]:
    """Apply valid changes; returns why the others were refused."""
    refused = {}
    for name, value in changes.items():
        try:
            if read({name: value})[name] != getattr(chats.settings(tab, lane), name):
                chats.set_settings({name: value}, lane=lane, tab_id=tab)
        except ValueError as error:
            refused[name] = str(error)
    return refused
