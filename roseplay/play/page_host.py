"""What the page's routes, controls and endpoints are given: the owner of the playground, which may not be live yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from roseplay.serve.served import Served

if TYPE_CHECKING:  # a start imports them after the page
    from roseplay.play.chat_service import ChatService
    from roseplay.play.playground import Playground


class PageHost(Served, Protocol):
    """A playground that is live, the host of an engine that starts or is changed, or a recording.

    Nothing that it returns may be kept: another engine has another playground. While none is live, everything that needs
    one raises ``EngineError`` with a sentence.
    """

    replaying: str | None
    """The name of the recording that is shown."""

    @property
    def playground(self) -> Playground:
        """The one that is live; raises ``EngineError`` while there is none, ``ValueError`` in a replay."""

    @property
    def chats(self) -> ChatService: ...

    def knobs(self) -> dict[str, Any]:
        """Returns the engine's knobs, or those that it starts with."""

    def recording(self, tab_id: str = "") -> Iterator[bytes]:
        """Yields the run so far, line by line, with the texts of this tab's requests only."""

    def recorded(self) -> dict[str, Any]:
        """Returns how much of the run is kept, see ``Recorder.figures``."""

    def delta(self, since: int, *, boot: str = "", tab_id: str = "", have: str = "") -> bytes:
        """Returns the reply to one poll, as JSON."""
