"""Keeps the frames of the current run, within limits, and writes them to a file if asked to.

A recording is text: a header, then one frame per line. ``reader`` reads it, and the page replays it.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import roseplay
from roseplay.engine.records import COLUMNS
from roseplay.formats.json_text import encode
from roseplay.recording.frame_texts import TextCollector
from roseplay.recording.initial_state import InitialState
from roseplay.recording.request_registry import RequestRegistry
from roseplay.recording.schema import FORMAT, MARK, Frame

KEEP_BYTES = 64_000_000
KEEP_S = 1800.0
_ROW_BYTES = 300  # overhead of a kept frame
_WORDS = (b"titles", b"texts", b"tenants")  # see ``frame_texts.Texts``
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kept:
    t: float
    frame: bytes
    words: dict[str, tuple[bytes, ...]]  # tab -> contents of the lists named by ``_WORDS``
    steps: int
    tokens: int
    requests: int

    @property
    def size(self) -> int:
        return len(self.frame) + sum(len(part) for parts in self.words.values() for part in parts) + _ROW_BYTES

    def line(self, may_read: Callable[[str], bool]) -> bytes:
        allowed = [words for tab, words in self.words.items() if may_read(tab)]
        lists = zip(_WORDS, zip(*allowed, strict=True), strict=False)
        more = b"".join(b',"%s":[%s]' % (name, b",".join(filter(None, parts))) for name, parts in lists if any(parts))
        return self.frame[:-1] + more + b"}\n"


class Recorder:
    """Keeps the newest frames of a run with their texts. One thread calls ``take``; the rest is thread-safe.

    Args:
        about: returns the engine's ``info`` and its ``environment``.
        knobs: their initial values; later changes are in the frames.
        absent: what another server does not report initially; later changes are in the frames.
        file: path of a new file, to which each line is written at once with all texts, so that it is complete whenever
            the program ends.

    Raises:
        OSError: the file cannot be made; ``FileExistsError`` if it exists.
    """

    def __init__(
        self,
        registry: RequestRegistry,
        about: Callable[[], dict[str, object]],
        knobs: dict[str, Any],
        *,
        absent: Mapping[str, str] | None = None,
        file: str | Path | None = None,
        keep_bytes: int = KEEP_BYTES,
        keep_s: float = KEEP_S,
    ) -> None:
        self._about = functools.cache(about)
        self._words = TextCollector(registry)
        self._kept: deque[_Kept] = deque()
        self._size = 0
        self._initial = InitialState(knobs, 0.0, absent)
        self._started = datetime.datetime.now(datetime.UTC)
        self._keep_bytes, self._keep_ms = keep_bytes, keep_s * 1000
        self._lock = threading.Lock()
        self.file = None if file is None else Path(file)
        self._out = None if file is None else open(file, "xb", buffering=0)  # noqa: SIM115 - open as long as the run
        self._whole = 0  # bytes of the complete lines in the file
        self._failing = False
        if self._out:
            self._begin()

    def _begin(self) -> None:
        """Write the header; if there is no room for it, remove the file."""
        try:
            self._append(self._header(_everything))
        except OSError:
            self.close()
            assert self.file is not None
            self.file.unlink(missing_ok=True)
            raise

    def take(self, frame: Frame, encoded: bytes) -> None:
        """Keep a frame and drop old ones beyond the limits. Never raises: the page must go on if recording fails."""
        try:
            self._take(frame, encoded)
            self._failing = False
        except BaseException:  # a panic in an extension module is not an Exception
            if not self._failing:
                _log.exception("a frame could not be recorded")
            self._failing = True

    def _take(self, frame: Frame, encoded: bytes) -> None:
        texts_by_tab = self._words.take(frame).items()
        words = {tab: tuple(encode(rows)[1:-1] for rows in texts) for tab, texts in texts_by_tab}
        submitted = sum(event.event == "submitted" for event in frame["requests"])
        entry = _Kept(frame["t"], encoded, words, len(frame["steps"]), len(frame["tokens"]), submitted)
        self._write(entry.line(_everything))
        with self._lock:
            self._kept.append(entry)
            self._size += entry.size
            while self._size > self._keep_bytes or self._kept[0].t < entry.t - self._keep_ms:
                self._drop(self._kept.popleft())
                if not self._kept:
                    break

    def _drop(self, kept: _Kept) -> None:
        self._size -= kept.size
        inside = [(tab, *(json.loads(b"[%s]" % part) for part in parts)) for tab, parts in kept.words.items()]
        self._initial.fold(json.loads(kept.frame), inside)

    def _write(self, line: bytes) -> None:
        """Write a line to the file, if any, unbuffered, so that it survives the end of this program."""
        if not self._out:
            return
        try:
            self._append(line)
        except OSError as error:  # a full disk must not stop the page
            _log.error("the recording %s ends here: %s", self.file, error.strerror or error)
            self.close()

    def _append(self, line: bytes) -> None:
        """Write a whole line, or raise ``OSError`` and leave the file as it was."""
        assert self._out is not None
        rest = memoryview(line)
        try:
            while rest:  # a nearly full disk accepts a part and reports an error only for the next
                rest = rest[self._out.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._out.truncate(self._whole)
            raise
        self._whole += len(line)

    def lines(self, tab_id: str = "") -> Iterator[bytes]:
        """Yields the lines of a recording of the frames kept, with the texts of this tab's requests only."""
        may_read = _only(tab_id)
        with self._lock:
            header, frames = self._header(may_read), list(self._kept)
        return itertools.chain([header], (frame.line(may_read) for frame in frames))

    def _header(self, may_read: Callable[[str], bool]) -> bytes:
        began = self._started + datetime.timedelta(milliseconds=self._initial.run.t)
        header = {
            MARK: FORMAT,
            "version": roseplay.__version__,
            "created": began.isoformat(timespec="milliseconds"),
            "words": "all" if may_read is _everything else "of one tab",
            **self._about(),
            "columns": COLUMNS,
            "knobs": self._initial.run.knobs,
            "snapshot": self._initial.snapshot(may_read),
        }
        return encode(header) + b"\n"

    def figures(self) -> dict[str, object]:
        """Returns how much is kept, as ``seconds``, ``frames``, ``steps``, ``requests``, ``tokens`` and ``bytes``."""
        with self._lock:
            frames = list(self._kept)
            size = self._size
        return {
            "seconds": round((frames[-1].t - frames[0].t) / 1000, 1) if frames else 0.0,
            "frames": len(frames),
            "steps": sum(frame.steps for frame in frames),
            "requests": sum(frame.requests for frame in frames),
            "tokens": sum(frame.tokens for frame in frames),
            "bytes": size - _ROW_BYTES * len(frames),
            "file": self.file.name if self._out and self.file else None,
        }

    def close(self) -> None:
        """Stop writing to the file."""
        out, self._out = self._out, None
        if out:
            with contextlib.suppress(OSError):  # errors were already reported by a write
                out.close()


def _everything(tab_id: str) -> bool:
    return True


def _only(tab_id: str) -> Callable[[str], bool]:
    """Returns a predicate that is true for this tab only: no tab may read the requests of programs, whose tab is ""."""
    return lambda tab: bool(tab) and tab == tab_id
