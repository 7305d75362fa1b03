"""The interface for the page's routes, controls and endpoints: an owner of a playground, which may not be live yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from roseplay.serve.served import Served

if TYPE_CHECKING:  # a start imports them after the page
    from roseplay.play.chat_service import ChatService
    from roseplay.play.playground import Playground


class PageHost(Served, Protocol):
    """A live playground, the host of an engine that is starting or being replaced, or a recording.

    Do not keep anything that it returns: another engine has another playground. While none is live, everything that
    needs one raises ``EngineError`` with a sentence.
    """

    replaying: str | None
    """The name of the recording that is shown."""

    @property
    def playground(self) -> Playground:
        """The live playground; raises ``EngineError`` while there is none, ``ValueError`` in a replay."""

    @property
    def chats(self) -> ChatService: ...

    def knobs(self) -> dict[str, Any]:
        """Returns the engine's knobs; before it is live, its initial ones."""

    def recording(self, tab_id: str = "") -> Iterator[bytes]:
        """Yields the run so far, line by line, with only the texts of this tab's requests."""

    def recorded(self) -> dict[str, object]:
        """Returns how much of the run has been kept, see ``Recorder.figures``."""

    def delta(self, since: int, *, boot: str = "", tab_id: str = "", have: str = "") -> bytes:
        """Returns the reply to one poll, as JSON."""
