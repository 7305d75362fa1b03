"""``roseplay export``: make a trace, tables or a report from a recording, without an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from roseplay.arguments import Parser, exit_code
from roseplay.recording.exports import KINDS
from roseplay.recording.reader import parse

_FLAGS = {"csv" if name == "tokens" else name: kind for name, kind in KINDS.items() if kind.make}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the requested files; returns 2 if that fails."""
    parser = Parser(prog="roseplay export", description="Make files from a recorded run (roseplay play --record FILE).")
    parser.add_argument("recording", metavar="RECORDING", help="the recording, a JSONL file")
    for flag, kind in _FLAGS.items():
        parser.add_argument(f"--{flag}", metavar="FILE", help=f"make {kind.file}. {kind.opens}")
    options = vars(parser.parse_args(argv))
    wanted = {flag: Path(options[flag]) for flag in _FLAGS if options[flag]}
    if not wanted:
        parser.error("nothing to make: use " + ", ".join(f"--{flag} FILE" for flag in _FLAGS))
    return exit_code("roseplay export", lambda: _export(Path(options["recording"]), wanted))


def _export(source: Path, wanted: Mapping[str, Path]) -> int:
    with source.open("rb") as lines:
        recording = parse(lines, source.name)
    for flag, path in wanted.items():
        make = _FLAGS[flag].make
        assert make is not None
        content = make(recording)
        path.write_bytes(content)
        print(f"{path}: {len(content):,} bytes")
    return 0
