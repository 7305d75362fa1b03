"""``roseplay bench``: measures an engine from outside, through its public API."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import httpx

from roseplay.arguments import Parser, exit_code
from roseplay.extras.bench import api, browser, compare, decode, page, streaming
from roseplay.extras.bench.runs import BenchmarkError
from roseplay.traffic.environment import environment

BENCHMARKS = (streaming, decode, compare, page, browser, api)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark; returns 0 if it has figures, 1 if it failed, 2 for bad arguments, 130 if interrupted."""
    args = _parser().parse_args(argv)
    failures = (BenchmarkError, TimeoutError, httpx.HTTPError)
    return exit_code(f"roseplay bench {args.benchmark}", lambda: _run(args), *failures)


def _run(args: argparse.Namespace) -> int:
    document = args.run(args)
    if "threads" in args:  # an engine that is measured in this process has told its own
        document.setdefault("environment", environment(threads=args.threads or 0, device=args.device))
    if args.json is not None:
        args.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


def _parser() -> Parser:
    """Returns the parser. A benchmark's help is its module's docstring: the first line as summary, the rest in full."""
    parser = Parser(prog="roseplay bench", description="Measure an engine.")
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for module in BENCHMARKS:
        title, description = (module.__doc__ or "").split("\n\n", 1)
        name, _, about = title.removeprefix("``roseplay bench ").partition("``: ")
        command = commands.add_parser(name, help=about.rstrip("."), description=description)
        module.add_flags(command)
        command.set_defaults(run=module.run)
    return parser
