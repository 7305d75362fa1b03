"""``roseplay import``: make a recording from another engine's telemetry, for the page to replay."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseplay.arguments import Parser, exit_code

if TYPE_CHECKING:
    from roseplay.wire.imported_run import ImportedRun

_UNTIL_INTERRUPTED_S = 1e9
_DESCRIPTION = (
    "Make a recording of another engine's steps (forward pass metrics) and cached blocks (KV events), from its sockets "
    "or from Dynamo's trace files. roseplay play --replay shows it; docs/wire.md says what it cannot show."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the recording; returns 2 if that fails."""
    options = _parser().parse_args(argv)
    return exit_code("roseplay import", lambda: _import(options))


def _import(options: argparse.Namespace) -> int:
    if bool(options.files) == any([options.kv_events, options.forward_pass]):
        raise ValueError("name files, or endpoints with --kv-events and --forward-pass")
    if options.kv_replay and not options.kv_events:
        raise ValueError("--kv-replay needs --kv-events")
    if options.out.exists():
        raise ValueError(f"{options.out} exists: choose another name")
    run = _run(options)
    if not run.steps and not run.blocks.highest:
        raise ValueError("; ".join(["nothing to show was found", *run.problems.lines()]))
    with options.out.open("xb") as file:
        file.writelines(run.lines())
    print(f"{options.out}: {run.steps:,} steps, at most {run.blocks.highest:,} cached blocks, {run.seconds:.1f} s")
    for line in run.problems.lines():
        print(f"roseplay import: {line}", file=sys.stderr)
    return 0


def _parser() -> Parser:
    parser = Parser(prog="roseplay import", description=_DESCRIPTION)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="dynamo-fpm.*.jsonl.gz or .jsonl, in order")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN.jsonl", help="new file for the recording")
    parser.add_argument("--kv-events", metavar="ENDPOINT", help="such as tcp://127.0.0.1:5557 or ipc:///tmp/socket")
    parser.add_argument("--kv-replay", metavar="ENDPOINT", help="where to request missed and earlier KV events")
    parser.add_argument("--forward-pass", metavar="ENDPOINT", help="such as tcp://127.0.0.1:20380")
    parser.add_argument("--seconds", type=_seconds, metavar="S", help="how long to listen (default: until Ctrl-C)")
    parser.add_argument("--name", help="the engine's name on the page (default: the name of its worker)")
    return parser


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < _UNTIL_INTERRUPTED_S:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")


def _run(options: Any) -> ImportedRun:
    """Returns the run read from the files or received from the sockets; Ctrl-C stops listening early."""
    from roseplay.wire.reader import SocketReader, read_files

    if options.files:
        return read_files(options.files, options.name)
    reader = SocketReader(options.kv_events, options.forward_pass, options.kv_replay, name=options.name)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            reader.read(options.seconds or _UNTIL_INTERRUPTED_S)
    finally:
        reader.close()
    return reader.run
