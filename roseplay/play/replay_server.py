"""A page host without an engine, which shows a recording."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from roseplay.engine.engine_like import EngineLike
from roseplay.formats.json_text import encode
from roseplay.play.chat_service import ChatService
from roseplay.play.requests import Requests
from roseplay.play.session import Tabs
from roseplay.recording.reader import RecordingError, parse
from roseplay.recording.recorded_engine import NO_ENGINE, RecordedEngine
from roseplay.serve.submissions import Submissions


class ReplayServer:
    """A ``PageHost`` with the recorded settings, which refuses everything that needs an engine.

    Args:
        path: a recording. Raises ``RecordingError`` if it cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            self._lines = path.read_bytes().splitlines(keepends=True)
        except OSError as error:
            raise RecordingError(f"the recording {str(path)!r} cannot be read: {error.strerror or error}") from None
        recording = parse(self._lines, path.name)
        if recording.cut:
            self._lines.pop()
        self.replaying: str | None = path.name
        self.notice: str | None = None
        self.boot_id = uuid.uuid4().hex[:12]
        self._knobs = dict(recording.header["knobs"])
        self.submissions = Submissions()
        self.engine: EngineLike = RecordedEngine(recording)
        self.chats = ChatService(Tabs(), Requests(self.engine))  # for reading its settings
        frames = recording.frames
        self._figures = {
            "seconds": round((frames[-1]["t"] - frames[0]["t"]) / 1000, 1) if frames else 0.0,
            "frames": len(frames),
            "steps": sum(len(frame["steps"]) for frame in frames),
            "requests": sum(event[1] == "submitted" for frame in frames for event in frame["requests"]),
            "tokens": sum(len(frame["tokens"]) for frame in frames),
            "bytes": sum(map(len, self._lines)),
            "file": None,
        }

    @property
    def playground(self) -> NoReturn:
        raise ValueError(NO_ENGINE)

    def set_knobs(self, changes: Mapping[str, Any]) -> NoReturn:
        raise ValueError(NO_ENGINE)

    def knobs(self) -> dict[str, Any]:
        """Returns the settings at the beginning of the recording."""
        return dict(self._knobs)

    def recording(self, tab_id: str = "") -> Iterator[bytes]:
        """Yields the file, line by line, with all texts: its owner shows it to everyone who can reach the page."""
        return iter(self._lines)

    def recorded(self) -> dict[str, object]:
        """Returns the same as ``Recorder.figures``, for the file."""
        return dict(self._figures)

    def delta(self, since: int, *, boot: str = "", tab_id: str = "", have: str = "") -> bytes:
        """Returns an empty snapshot: the page does not poll in a replay, and for other clients nothing ever happens."""
        snapshot = {"info": dataclasses.asdict(self.engine.info), "knobs": self._knobs, "t": 0.0, "requests": []}
        more: dict[str, object] = {"blocks": [], "stats": None, "burst": None}
        head = {"boot_id": self.boot_id, "next": 1, "reset": True, "snapshot": {**snapshot, **more}, "now": 0.0}
        return encode({**head, "health": None, "frames": [], "own": {"lanes": []}})
