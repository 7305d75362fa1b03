"""The files that a recording can be exported to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from roseplay.recording.reader import Recording, parse
from roseplay.recording.run_report import run_report
from roseplay.recording.tables import requests, steps, tokens, traffic
from roseplay.recording.trace import trace


class Kind(NamedTuple):
    """A file name, its media type, what opens it, and what makes it; ``None`` for the recording itself."""

    file: str
    media_type: str
    opens: str
    make: Callable[[Recording], bytes] | None


_CSV, _JSONL = "text/csv; charset=utf-8", "application/x-ndjson"
KINDS = {
    "recording": Kind("recording.jsonl", _JSONL, "Replays on this page, or with roseplay play --replay FILE.", None),
    "trace": Kind(
        "trace.json", "application/json", "Opens in ui.perfetto.dev or chrome://tracing, from a local file.", trace
    ),
    "steps": Kind("steps.csv", _CSV, "Opens in a spreadsheet: one row per step.", steps),
    "tokens": Kind("tokens.csv", _CSV, "Opens in a spreadsheet: one row per token.", tokens),
    "requests": Kind("requests.csv", _CSV, "Opens in a spreadsheet: one row per request.", requests),
    "traffic": Kind("traffic.jsonl", _JSONL, "Arrivals and lengths, to play again as your own traffic.", traffic),
    "report": Kind("report.html", "text/html; charset=utf-8", "Opens in any browser, without a network.", run_report),
}


def export(kind: str, lines: Iterable[bytes]) -> bytes:
    """Returns the content of this kind of file; raises ``ValueError`` for an unknown kind or a broken recording."""
    if kind not in KINDS:
        raise ValueError(f"there is no export of kind {kind!r}: use one of {', '.join(KINDS)}")
    make = KINDS[kind].make
    return make(parse(lines, "this run")) if make else b"".join(lines)
