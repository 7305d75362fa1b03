"""Reads the files of forward pass metrics that Dynamo writes: JSON lines, usually compressed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from roseplay.wire.extra import WireError, msgspec
from roseplay.wire.forward_pass import ForwardPassMetrics, forward_pass_of
from roseplay.wire.problems import Problems

LONGEST_LINE = 1 << 20
MOST_BYTES = 1 << 28
_LATEST_UNIX_MS = 253_402_300_799_999  # the end of the year 9999
_GZIP = b"\x1f\x8b"


class Observed(NamedTuple):
    """One record, and when it was observed, in ms since 1970 or since the writer started; ``None`` if unknown."""

    time_ms: float | None
    metrics: ForwardPassMetrics


def read_trace(path: Path, problems: Problems, most_bytes: int = MOST_BYTES) -> Iterator[Observed]:
    """Yields a file's records in order. Invalid lines and a truncated or damaged end are counted in ``problems``.

    Args:
        most_bytes: the most bytes read, after decompression.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as raw:
        is_compressed = raw.read(2) == _GZIP
        raw.seek(0)
        lines = _lines(cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_compressed else raw, problems, most_bytes)
        while True:
            try:
                line = next(lines, None)
            except (EOFError, zlib.error, gzip.BadGzipFile):
                problems.skip("the end of a compressed file, which is incomplete or damaged")
                return
            if line is None:
                return
            try:
                yield _record(line)
            except WireError as error:
                problems.skip(str(error))


def _lines(file: IO[bytes], problems: Problems, most_bytes: int) -> Iterator[bytes]:
    left = most_bytes
    while line := file.readline(LONGEST_LINE):
        left -= len(line)
        if left < 0:
            problems.skip(f"what follows the first {most_bytes:,} bytes of a file")
            return
        if line.strip():
            yield line


def _record(line: bytes) -> Observed:
    """Returns a line's record, which may lack its envelope or be only the metrics; raises ``WireError`` for others."""
    try:
        outer: Any = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise WireError("a line is not JSON") from None
    event = outer.get("event", outer) if isinstance(outer, dict) else outer
    if not isinstance(event, dict):
        raise WireError("a line is not a record of forward pass metrics")
    metrics = forward_pass_of(event.get("fpm", event))
    for value in (event.get("observed_at_unix_ms"), outer.get("timestamp")):
        if isinstance(value, int | float):
            return Observed(float(value) if 0 <= value <= _LATEST_UNIX_MS else None, metrics)
    return Observed(None, metrics)
