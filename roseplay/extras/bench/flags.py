"""The benchmarks' flags, and the engines and traffic that they describe."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseplay.arguments import add_field_flags, given_fields, list_of_integers, within
from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.model import shapes
from roseplay.own_models import EMBEDDED
from roseplay.settings import settings_of
from roseplay.traffic.arrivals import fixed_interval
from roseplay.traffic.prompts import PromptMix, PromptSource
from roseplay.traffic.workload import Workload, make_workload

if TYPE_CHECKING:
    from roseplay.engine.client import Engine

# Benchmarks size the pool in blocks, and only some have --worker (see ``add_worker_flag``).
_NOT_FLAGS = ("kv_cache_memory", "worker")
MOST = 10**6  # seconds, requests or tokens


def add(group: Any, flag: str, default: Any, help: str, **options: Any) -> None:
    """Add a flag whose help shows its default, if any. It is a number from 0 if the default is a float, else an
    integer from 1."""
    shown = "" if default is None else " (default: %(default)s)"
    options.setdefault("type", within(0.0 if isinstance(default, float) else 1, MOST))
    group.add_argument(flag, default=default, help=help + shown, **options)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``EngineConfig``."""
    group = parser.add_argument_group("engine")
    help = (
        f"name, path, GGUF file, hub id, or a bundled shape to run with --random-weights: {', '.join(shapes.names())}"
    )
    add(group, "--model", EMBEDDED, help, type=str)
    add_field_flags(group, EngineConfig, leave_out=_NOT_FLAGS, fill=True)


def add_worker_flag(parser: Any, default: str) -> None:
    """Add ``--worker``, for benchmarks in which it matters where the engine's loop runs."""
    add_field_flags(parser, EngineConfig, only=("worker",), defaults={"worker": default}, fill=True)


def add_knob_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("knobs")
    add_field_flags(group, Knobs, leave_out=("slow_motion",), fill=True)
    # Accepted here so that it can be refused with an explanation.
    group.add_argument("--slow-motion", type=float, default=1.0, help=argparse.SUPPRESS)


def add_run_flags(parser: argparse.ArgumentParser, *, repeat_runs: int = 1, keep_cache: bool = False) -> None:
    """Add flags for the number of runs and the output file, and ``--keep-cache`` if the benchmark supports it."""
    group = parser.add_argument_group("runs")
    add(group, "--warmup-runs", 1, "runs before the measured ones, not counted", type=within(0, MOST))
    add(group, "--repeat-runs", repeat_runs, "measured runs, of which the median is reported")
    if keep_cache:
        group.add_argument("--keep-cache", action="store_true", help="keep cached blocks between runs")
    add(group, "--time-limit-s", 600.0, "a run that takes longer fails")
    add_json_flag(group)


def add_json_flag(group: Any) -> None:
    add(group, "--json", None, "write the results to this file as JSON", type=writable_file, metavar="FILE")


def add_traffic_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("traffic")
    add(group, "--prompt", "Hello", "text of a prompt; without a tokenizer, a token for each of its words", type=str)
    add_repeats_flag(group)
    group.add_argument("--unique-prompts", action="store_true", help="make each prompt end differently")
    add(group, "--num-requests", 16, "requests in a run")
    add(group, "--submit-interval-ms", 0.0, "time between requests; 0 sends them all at once")
    add(group, "--max-new-tokens", 32, "maximum number of tokens in an answer")
    group.add_argument("--no-stop-on-eos", action="store_true", help="continue past end-of-sequence tokens")


def add_repeats_flag(group: Any) -> None:
    """Add ``--prompt-repeats``, for traffic with prompts of several lengths."""
    help = "how often prompts repeat their text, in turn: 1,1,1,64 makes three short prompts and a long one"
    add(group, "--prompt-repeats", "1", help, type=list_of_integers, metavar="N,N,...")


def engine_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the flags of ``add_engine_flags`` as fields of ``EngineConfig``, with values for JSON."""
    return {name: getattr(args, name) for name in settings_of(EngineConfig) if name not in _NOT_FLAGS}


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """Returns the engine's configuration; raises ``ValueError`` for a bad value."""
    return EngineConfig(**engine_settings(args))


def knobs(args: argparse.Namespace) -> Knobs:
    """Returns the knobs; raises ``ValueError`` for a bad value."""
    return Knobs(**given_fields(Knobs, vars(args)))


def open_engine(args: argparse.Namespace, knobs: Knobs, **settings: Any) -> Engine:
    """Returns a started engine; ``settings`` are fields of ``EngineConfig``, which override the flags.

    Raises ``EngineStartError`` (a ``ValueError``) with a one-line message for the user.
    """
    config = dataclasses.replace(engine_config(args), **settings)
    from roseplay.engine.client import Engine  # here, to report bad flags before torch is loaded

    return Engine(args.model, config=config, knobs=knobs)


def workload(args: argparse.Namespace, source: PromptSource) -> Workload:
    """Returns the workload; raises ``ValueError`` for a bad value."""
    return make_workload(
        source,
        fixed_interval(args.num_requests, args.submit_interval_ms / 1e3),
        mix=PromptMix(repeats=tuple(args.prompt_repeats), unique=args.unique_prompts),
        params=SamplingParams(max_new_tokens=args.max_new_tokens, ignore_eos=args.no_stop_on_eos),
        seed=args.seed,
    )


def writable_file(text: str) -> Path:
    """Returns an argument's path if its directory exists."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: no such directory")
    return path
