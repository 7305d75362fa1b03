"""What the page's routes, controls and endpoints hold of a playground whose engine may be starting, or another one later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a start imports them after the page
    from roseplay.engine.engine_like import EngineLike
    from roseplay.lab.lab import Lab
    from roseplay.play.chat_service import ChatService
    from roseplay.play.demos.player import DemoPlayer
    from roseplay.play.demos.script import Demo
    from roseplay.play.playground import Playground
    from roseplay.play.requests import Requests
    from roseplay.play.session import Tabs
    from roseplay.play.traffic_service import TrafficService
    from roseplay.serve.submissions import Submissions


class Hosted(ABC):
    """Passes each call on to the playground that is live at that moment. Nothing of it may be kept by its callers.

    Everything raises ``EngineError`` with a sentence while there is none.
    """

    replaying: str | None = None

    @property
    @abstractmethod
    def playground(self) -> Playground:
        """The one that is live; raises ``EngineError`` while there is none."""

    @property
    def engine(self) -> EngineLike:
        return self.playground.engine

    @property
    def boot_id(self) -> str:
        return self.playground.boot_id

    @property
    def notice(self) -> str | None:
        return self.playground.notice

    @property
    def tabs(self) -> Tabs:
        return self.playground.tabs

    @property
    def requests(self) -> Requests:
        return self.playground.requests

    @property
    def chats(self) -> ChatService:
        return self.playground.chats

    @property
    def traffic(self) -> TrafficService:
        return self.playground.traffic

    @property
    def demos(self) -> DemoPlayer:
        return self.playground.demos

    @property
    def lab(self) -> Lab:
        return self.playground.lab

    @property
    def submissions(self) -> Submissions:
        return self.playground.submissions

    def stop(self, *, tab_id: str = "", lane: int | None = None, ids: list[int] | None = None) -> int:
        return self.playground.stop(tab_id=tab_id, lane=lane, ids=ids)

    def start_demo(self, name: str, tab_id: str) -> Demo:
        return self.playground.start_demo(name, tab_id)

    def set_knobs(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        return self.playground.set_knobs(changes)

    def block(self, number: int, tab_id: str = "") -> dict[str, Any]:
        return self.playground.block(number, tab_id)

    def prompt(self, request_id: int, tab_id: str = "") -> dict[str, Any]:
        return self.playground.prompt(request_id, tab_id)

    def recording(self, tab_id: str = "") -> Iterator[bytes]:
        return self.playground.recording(tab_id)

    def recorded(self) -> dict[str, Any]:
        return self.playground.recorded()

    def delta(self, since: int, *, boot: str = "", tab_id: str = "", have: str = "") -> bytes:
        return self.playground.delta(since, boot=boot, tab_id=tab_id, have=have)
