"""``roseplay export``: make a trace, tables or a report from a recording, without an engine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from roseplay.arguments import Parser
from roseplay.recording.exports import make
from roseplay.recording.reader import RecordingError, parse

_FLAGS = {
    "trace": "a Chrome trace, for ui.perfetto.dev",
    "csv": "a CSV file with a row per token",
    "requests": "a CSV file with a row per request",
    "traffic": "arrivals and lengths as JSONL, for roseplay lab --traffic",
    "report": "one HTML page with charts",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the requested files; returns 2 if that fails."""
    parser = Parser(prog="roseplay export", description="Make files from a recorded run (roseplay play --record FILE).")
    parser.add_argument("recording", metavar="RECORDING", help="the recording, a JSONL file")
    for flag, about in _FLAGS.items():
        parser.add_argument(f"--{flag}", metavar="FILE", help=about)
    options = vars(parser.parse_args(argv))
    wanted = {flag: Path(options[flag]) for flag in _FLAGS if options[flag]}
    if not wanted:
        parser.error("nothing to make: use " + ", ".join(f"--{flag} FILE" for flag in _FLAGS))
    source = Path(options["recording"])
    try:
        with source.open("rb") as lines:
            recording = parse(lines, source.name)
        for flag, path in wanted.items():
            made = make({"csv": "tokens"}.get(flag, flag), recording)
            path.write_bytes(made)
            print(f"{path}: {len(made):,} bytes")
    except RecordingError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}")
    return 0


def _refuse(message: str) -> int:
    print(f"roseplay export: {message}", file=sys.stderr)
    return 2
