"""Reads recordings, and reports what is wrong with those that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import roseplay
from roseplay.config import Knobs
from roseplay.core.info import EngineInfo
from roseplay.engine.records import COLUMNS, ROWS, names_of
from roseplay.formats.json_schema import check, checker
from roseplay.formats.json_text import RepeatedNameError, unique_names
from roseplay.recording.schema import FORMAT, HEADER, MARK, MAX_BLOCKS, EventRow, Frame, KnobRow, frame_schema
from roseplay.settings import defaults_of


class RecordingError(ValueError):
    """A file is not a recording, or is damaged. The message names the file and, for a damaged frame, the line."""


@dataclass(frozen=True)
class Recording:
    name: str  # the file's name, for messages
    # The first line: ``info``, ``knobs``, ``environment``, ``snapshot``, the time and roseplay's version.
    header: dict[str, Any]
    # Oldest first, as sent by ``/ui/delta``, with ``titles``, ``texts`` and ``tenants`` if they were recorded.
    frames: list[Frame]
    cut: bool = False  # the last line was incomplete, as after a crash, and was dropped

    @property
    def info(self) -> EngineInfo:
        return EngineInfo.of(self.header["info"])


@cache
def demo_path() -> Path | None:
    """Returns the path of the recorded run that ships with roseplay: in an installed package, or in the repository."""
    package = Path(roseplay.__file__).parent
    places = (package / "assets" / "demo.jsonl", package.parent / "assets" / "demo.jsonl")
    return next((place for place in places if place.is_file()), None)


def read(path: str | Path) -> Recording:
    """Read a recording from a file. Raises ``RecordingError``, with a one-line message, if that fails."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            return parse(file, path.name)
    except FileNotFoundError:
        raise RecordingError(f"there is no file {str(path)!r}") from None
    except OSError as error:
        raise RecordingError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None


def parse(lines: Iterable[bytes], name: str) -> Recording:
    """Parse a recording's lines. An incomplete last line is dropped; other damage raises ``RecordingError``."""
    header: dict[str, Any] | None = None
    frames: list[Frame] = []
    broken: RecordingError | None = None
    for number, line in enumerate(lines, 1):
        if broken:
            raise broken  # it was not the last line
        if header is None:
            header, check_frame = _header(line, name)
            continue
        try:
            frames.append(_frame(line, check_frame, header["columns"]))
        except ValueError as error:
            broken = RecordingError(f"{name}: line {number}: {error}: the file is damaged")
            if line.endswith(b"\n"):
                raise broken from None
    if header is None:
        raise RecordingError(f"{name} is empty")
    return Recording(name, header, frames, cut=broken is not None)


def _header(line: bytes, name: str) -> tuple[dict[str, Any], Callable[[Any], None]]:
    """Returns the header, and the check of the frames that follow it."""
    try:
        header = _json(line)
    except RepeatedNameError as error:
        raise RecordingError(f"{name}: the header: {error}: the file is damaged") from None
    except ValueError:
        header = None
    if not isinstance(header, dict) or MARK not in header:
        raise RecordingError(f"{name} is not a recording of roseplay: its first line is not a header with {MARK!r}")
    if header[MARK] != FORMAT:
        raise RecordingError(
            f"{name} has format {str(header[MARK])[:40]!r}, and this version reads format {FORMAT}: it was made by"
            f" roseplay {str(header.get('version', '?'))[:40]!r}"
        )
    try:
        check(header, HEADER)
        _check_runs(header["snapshot"].get("blocks", ()))
        check_frame = checker(frame_schema(header["columns"]))
    except ValueError as error:
        raise RecordingError(f"{name}: the header: {error}: the file is damaged") from None
    header["knobs"] = {**defaults_of(Knobs), **header["knobs"]}
    names = names_of(EngineInfo)
    header["info"] = {name: value for name, value in header["info"].items() if name in names}
    return header, check_frame


def _frame(line: bytes, check_frame: Callable[[Any], None], columns: dict[str, list[str]]) -> Frame:
    """Returns a frame with its rows as records; raises ``ValueError`` if it is invalid."""
    frame = _json(line)
    check_frame(frame)
    _check_runs(frame["blocks"])
    for name in ("titles", "texts", "tenants"):
        frame.setdefault(name, [])
    return with_rows(frame, columns)


def _check_runs(blocks: Iterable[list[int]]) -> None:
    """Raises ``ValueError`` for blocks beyond the largest pool: memory is taken for the state of each."""
    for block, _, _, _, *more in blocks:
        if more and block + more[0] > MAX_BLOCKS:
            raise ValueError(f"blocks, count should end at block {MAX_BLOCKS:,} at most")


def with_rows(frame: Any, columns: dict[str, list[str]] = COLUMNS) -> Frame:
    """Returns a valid frame with its rows as records; steps, their entries and tokens are matched by column name."""
    step, entry, token = (_row_maker(name, columns[name]) for name in ("steps", "entries", "tokens"))
    steps = [step(row) for row in frame["steps"]]
    for row in steps:
        row.entries = [entry(part) for part in row.entries]
    requests, knobs = [EventRow(*row) for row in frame["requests"]], [KnobRow(*row) for row in frame["knobs"]]
    tokens = [token(row) for row in frame["tokens"]]
    frame |= {"steps": steps, "tokens": tokens, "requests": requests, "knobs": knobs}
    return frame


def _row_maker(rows: str, names: list[str]) -> Callable[[list[Any]], Any]:
    """Returns a function that makes a record of a list with these columns, ignoring unknown columns."""
    kind = ROWS[rows]
    if rows != "steps" and names == COLUMNS[rows]:
        return lambda row: kind(*row)
    columns = [(place, name) for place, name in enumerate(names) if name in COLUMNS[rows]]
    return lambda row: kind(**{name: row[place] for place, name in columns})


def _json(line: bytes) -> Any:
    """Parse JSON; raises ``ValueError`` for anything else, including ``NaN`` and ``Infinity``."""
    try:  # int raises ValueError for NaN and Infinity
        return json.loads(line, parse_constant=int, object_pairs_hook=unique_names)
    except RepeatedNameError:
        raise
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
