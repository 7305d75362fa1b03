"""The files that a recording can be exported to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from roseplay.recording.reader import Recording, parse
from roseplay.recording.run_report import run_report
from roseplay.recording.tables import requests, tokens, traffic
from roseplay.recording.trace import trace


class Kind(NamedTuple):
    """A file name, its media type, and what opens it."""

    file: str
    media_type: str
    opens: str


KINDS = {
    "recording": Kind(
        "recording.jsonl", "application/x-ndjson", "Replays on this page, or with roseplay play --replay FILE."
    ),
    "trace": Kind("trace.json", "application/json", "Opens in ui.perfetto.dev or chrome://tracing, from a local file."),
    "tokens": Kind("tokens.csv", "text/csv; charset=utf-8", "Opens in a spreadsheet: one row per token."),
    "requests": Kind("requests.csv", "text/csv; charset=utf-8", "Opens in a spreadsheet: one row per request."),
    "traffic": Kind(
        "traffic.jsonl", "application/x-ndjson", "Arrivals and lengths, to play again: roseplay lab --traffic FILE."
    ),
    "report": Kind("report.html", "text/html; charset=utf-8", "Opens in any browser, without a network."),
}


def export(kind: str, lines: Iterable[bytes], name: str = "this run") -> bytes:
    """Returns the content of this kind of file; raises ``ValueError`` for an unknown kind or a broken recording."""
    if kind not in KINDS:
        raise ValueError(f"there is no export of kind {kind!r}: use one of {', '.join(KINDS)}")
    return b"".join(lines) if kind == "recording" else make(kind, parse(lines, name))


def make(kind: str, recording: Recording) -> bytes:
    """Returns a recording as a trace, a table of tokens or requests, traffic, or a report."""
    makers = {"trace": trace, "tokens": tokens, "requests": requests, "traffic": traffic, "report": run_report}
    return makers[kind](recording)
