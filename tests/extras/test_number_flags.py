"""Numbers that cannot be meant, in the flags of extensions' commands."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pytest

from roseplay import arguments
from roseplay.cli import main
from roseplay.config import SETTINGS
from roseplay.extras.bench import flags
from roseplay.extras.bench.main import BENCHMARKS, _parser
from roseplay.extras.simulation.calibrate.command import _parser as calibrate_parser
from roseplay.extras.simulation.plan.command import _parser as plan_parser

NUMBERS = ("0", "-1", "1e-9", "1e300", f"1{30 * '0'}", "nan", "inf")
SMALL = "--requests 3 --prompt-tokens 8 --answer-tokens 2 --max-gpus 1"
bench_parser = cache(_parser)


def bench(argv: Sequence[str]) -> int:
    """Check a benchmark's flags without running it."""
    options = bench_parser().parse_args(argv[1:])
    return arguments.exit_code("roseplay bench", lambda: int(not (flags.knobs(options) and _config(options))))


def _config(options: argparse.Namespace) -> object:
    return flags.engine_config(options) if "block_size" in options else True


def number_flags(parser: argparse.ArgumentParser, command: str) -> Iterator[str]:
    """The flags that take numbers, in a parser or in that of a benchmark that it has; of several benchmarks, settings'
    flags are those of the first."""
    benchmarks = next((one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction)), {})
    leave_out = {*SETTINGS} if command in [*benchmarks][1:] else set()
    for action in benchmarks.get(command, parser)._actions:
        if action.option_strings and action.type is not None and action.dest not in leave_out:
            with contextlib.suppress(ValueError, argparse.ArgumentTypeError):
                if isinstance(action.type("8"), int | float | list):  # type: ignore[operator]
                    yield action.option_strings[-1]


@pytest.mark.parametrize(
    ("run", "parser", "given"),
    [
        (main, plan_parser, f"plan --gpu h100 --model qwen3-8b --itl-p95 50 --rate 5 {SMALL}"),
        (main, calibrate_parser, "calibrate --gpu h100 --model qwen3-8b --url http://127.0.0.1:9"),
        *((bench, bench_parser, f"bench {module.__name__.split('.')[-1]}") for module in BENCHMARKS),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_a_number_that_cannot_be_meant_is_one_line(
    run: Callable[[Sequence[str]], int],
    parser: Callable[[], argparse.ArgumentParser],
    given: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_numbers(run, parser, given, capsys)


def check_numbers(
    run: Callable[[Sequence[str]], int],
    parser: Callable[[], argparse.ArgumentParser],
    given: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each flag of a command that takes a number refuses a senseless one in one line."""
    names = list(number_flags(parser(), given.split()[1]))
    assert len(names) > 1
    for flag in names:
        for number in NUMBERS:
            try:
                code = run([*given.split(), f"{flag}={number}"])
            except SystemExit as left:
                code = int(str(left.code))
            err = capsys.readouterr().err
            assert len(err.splitlines()) == bool(code), (flag, number, err)
            if not math.isfinite(float(number)):
                assert code == 2 and "it would run" not in err, (flag, number, err)
