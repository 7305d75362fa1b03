"""Read a recording, and say clearly what is wrong with one that cannot be read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roseplay.core.info import EngineInfo
from roseplay.play.recording.recorder import FORMAT
from roseplay.play.rows import EntryRow, StepRow, TokenRow

MARK = "roseplay_recording"
_LISTS = ("steps", "tokens", "requests", "knobs", "blocks")
_KINDS = ("submitted", "scheduled", "first", "finished")
_STEP = len(StepRow._fields)
_OLDER_STEP = _STEP - len(StepRow._field_defaults)
_WIDTHS = {
    "steps": (_OLDER_STEP, _STEP),
    "tokens": (len(TokenRow._fields),) * 2,
    "requests": (4, 4),
    "knobs": (3, 3),
    "blocks": (4, 4),
}  # least and most columns


class RecordingError(ValueError):
    """A file is no recording, or a broken one. The message names the file and the line."""


@dataclass(frozen=True)
class Recording:
    """A run as it was recorded.

    Attributes:
        name: of the file, for people.
        header: the first line: ``info``, ``knobs``, ``environment``, ``snapshot`` and when and with what it was made.
        frames: oldest first, as ``/ui/delta`` had them, with ``titles`` and ``texts`` where those were recorded.
        cut: the last line was incomplete, as after a crash, and was left out.
    """

    name: str
    header: dict[str, Any]
    frames: list[dict[str, Any]]
    cut: bool = False

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(**self.header["info"])


def read(path: str | Path) -> Recording:
    """Read a recording from a file. Raises ``RecordingError`` in one line whatever is wrong with it."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            return parse(file, path.name)
    except FileNotFoundError:
        raise RecordingError(f"there is no file {str(path)!r}") from None
    except OSError as error:
        raise RecordingError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None


def parse(lines: Iterable[bytes], name: str) -> Recording:
    """A recording from its lines. A last line that is cut off is left out; anything else broken is an error."""
    header: dict[str, Any] | None = None
    frames: list[dict[str, Any]] = []
    broken: RecordingError | None = None
    for number, line in enumerate(lines, 1):
        if broken:
            raise broken  # it was not the last line
        if header is None:
            header = _header(line, name)
            continue
        try:
            frames.append(_frame(line))
        except (ValueError, TypeError) as error:
            what = "is no JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else str(error)
            broken = RecordingError(f"{name}: line {number} {what}: the file is damaged")
            if line.endswith(b"\n"):
                raise broken from None
    if header is None:
        raise RecordingError(f"{name} is empty")
    return Recording(name, header, frames, cut=broken is not None)


def _header(line: bytes, name: str) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or MARK not in header:
        raise RecordingError(f"{name} is no recording of roseplay: its first line is no header with {MARK!r}")
    if header[MARK] != FORMAT:
        raise RecordingError(
            f"{name} has format {header[MARK]!r}, and this version reads format {FORMAT}:"
            f" it was made by roseplay {header.get('version', '?')}"
        )
    for part in ("info", "knobs", "snapshot"):
        if not isinstance(header.get(part), dict):
            raise RecordingError(f"{name}: the header has no {part!r}: the file is damaged")
    fields = {field.name: field.default is dataclasses.MISSING for field in dataclasses.fields(EngineInfo)}
    missing = sorted(name for name, needed in fields.items() if needed and name not in header["info"])
    if missing:
        raise RecordingError(f"{name}: 'info' of the header lacks {', '.join(missing)}: the file is damaged")
    header["info"] = {field: value for field, value in header["info"].items() if field in fields}
    return header


def _frame(line: bytes) -> dict[str, Any]:
    """A frame with its rows as named tuples; ``ValueError`` says what is wrong with it."""
    frame = json.loads(line)
    if not isinstance(frame, dict) or not isinstance(frame.get("t"), int | float):
        raise ValueError("is no frame")
    for name in _LISTS:
        rows, (least, most) = frame.get(name), _WIDTHS[name]
        if not isinstance(rows, list) or any(not isinstance(r, list) or not least <= len(r) <= most for r in rows):
            raise ValueError(f"has no {name!r} as a frame has them")
    if any(row[1] not in _KINDS or not isinstance(row[3], dict) for row in frame["requests"]):
        raise ValueError("tells of a request what no version has told")
    frame["steps"] = [StepRow(*row)._replace(entries=[EntryRow(*e) for e in row[16]]) for row in frame["steps"]]
    frame["tokens"] = [TokenRow(*row) for row in frame["tokens"]]
    for name in ("titles", "texts"):
        frame.setdefault(name, [])
    return frame
