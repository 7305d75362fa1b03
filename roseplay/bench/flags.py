"""The benchmarks' flags, and what they mean to an engine and to its traffic."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from roseplay.bench import shapes
from roseplay.config import ADMISSIONS, ATTENTIONS, DTYPES, EngineConfig, Knobs, SamplingParams
from roseplay.traffic.arrivals import fixed_interval
from roseplay.traffic.prompts import PromptMix, PromptSource
from roseplay.traffic.workload import Workload, make_workload

if TYPE_CHECKING:
    from roseplay.engine.client import Engine


class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Tells defaults, except where one says nothing: a switch that is off, a limit that is none."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """A parser that answers a mistake with one line and exit code 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Defaults, **kwargs})

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (--help lists the flags)", file=sys.stderr)
        raise SystemExit(2)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of ``EngineConfig``."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--model",
        default="tiny-chat",
        help=f"name, path, hub id, or a bundled shape to run with --random-weights: {', '.join(shapes.names())}",
    )
    group.add_argument("--random-weights", action="store_true", help="build the model from its config.json alone")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    group.add_argument("--dtype", default="auto", choices=DTYPES, help="of weights and KV cache")
    group.add_argument("--num-blocks", type=int, help="KV blocks, block 0 included; left out, the pool sizes itself")
    group.add_argument("--attention", default="auto", choices=ATTENTIONS, help="how keys and values are read")
    group.add_argument("--no-pack-weights", action="store_true", help="lay weights out anew in every product (CPU)")
    group.add_argument("--no-replay-steps", action="store_true", help="run every step through the model's code (CPU)")
    group.add_argument("--no-fuse-ops", action="store_true", help="norms, rotary embeddings, GELUs and gates by torch")
    group.add_argument("--threads", type=int, help="torch's threads; left out, torch chooses")
    group.add_argument("--seed", type=int, default=0, help="of random weights, synthetic prompts and sampling")


def add_knob_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of ``Knobs``; None is unlimited."""
    defaults = Knobs()
    group = parser.add_argument_group("knobs")
    group.add_argument("--max-batch-size", type=int, default=defaults.max_batch_size, help="requests running at once")
    group.add_argument("--prefill-max-batch-size", type=int, help="requests whose prompts are computed in one step")
    group.add_argument("--prefill-max-tokens", type=int, help="prompt tokens computed a step")
    group.add_argument("--step-max-tokens", type=int, help="prompt and decode tokens a step together")
    group.add_argument("--no-prefix-cache", action="store_true", help="never look up earlier prompts")
    group.add_argument("--no-chunked-prefill", action="store_true", help="compute each prompt whole")
    group.add_argument("--no-same-step-sharing", action="store_true", help="equal prompts of a step each compute")
    group.add_argument("--no-batched-append", action="store_true", help="one KV write a request and layer")
    group.add_argument("--admission", choices=ADMISSIONS, default=defaults.admission, help="blocking: submit prefills")
    group.add_argument("--no-cuda-graphs", action="store_true", help="launch each step's kernels one by one (GPU)")
    group.add_argument("--no-overlap", action="store_true", help="wait for a step before the next is made (GPU)")
    # Known, so that it can be refused by its name.
    group.add_argument("--slow-motion", type=float, default=1.0, help=argparse.SUPPRESS)


def add_run_flags(parser: argparse.ArgumentParser, *, keep_cache: bool = True, time_limit: bool = True) -> None:
    """Flags of how often a workload is played, and where its figures go; two only where they mean something."""
    group = parser.add_argument_group("runs")
    group.add_argument("--warmup-runs", type=at_least(0), default=1, help="runs that are not counted")
    group.add_argument("--repeat-runs", type=at_least(1), default=1, help="runs that are; the median one is told")
    if keep_cache:
        group.add_argument("--keep-cache", action="store_true", help="do not forget cached blocks between runs")
    if time_limit:
        group.add_argument("--time-limit-s", type=float, default=600.0, help="a run longer than this is given up")
    group.add_argument("--json", type=writable_file, metavar="FILE", help="write the figures there as JSON")


def add_traffic_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of a workload."""
    group = parser.add_argument_group("traffic")
    group.add_argument("--prompt", default="Hello", help="text of a prompt; without a tokenizer its words count")
    group.add_argument(
        "--prompt-repeats",
        type=list_of_integers,
        default="1",
        metavar="N,N,...",
        help="how often a prompt repeats its text, taken in turn by the requests: 1,1,1,64 is three short, one long",
    )
    group.add_argument("--unique-prompts", action="store_true", help="each prompt ends differently")
    group.add_argument("--num-requests", type=at_least(1), default=16, help="requests of a run")
    group.add_argument("--submit-interval-ms", type=float, default=0.0, help="from one request to the next; 0: burst")
    group.add_argument("--max-new-tokens", type=int, default=32, help="most tokens of an answer")
    group.add_argument("--no-stop-on-eos", action="store_true", help="go on past end-of-sequence tokens")


def engine_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The flags of ``add_engine_flags`` by ``EngineConfig``'s names, fit for JSON."""
    return {
        "device": args.device,
        "dtype": args.dtype,
        "num_blocks": args.num_blocks,
        "threads": args.threads,
        "seed": args.seed,
        "random_weights": args.random_weights,
        "attention": args.attention,
        "pack_weights": not args.no_pack_weights,
        "fuse_ops": not args.no_fuse_ops,
        "replay_steps": not args.no_replay_steps,
    }


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """Raises ``ValueError`` for a bad value."""
    return EngineConfig(**engine_settings(args))


def knobs(args: argparse.Namespace) -> Knobs:
    """Raises ``ValueError`` for a bad value."""
    return Knobs(
        max_batch_size=args.max_batch_size,
        prefill_max_batch_size=args.prefill_max_batch_size,
        prefill_max_tokens=args.prefill_max_tokens,
        step_max_tokens=args.step_max_tokens,
        prefix_cache=not args.no_prefix_cache,
        chunked_prefill=not args.no_chunked_prefill,
        same_step_sharing=not args.no_same_step_sharing,
        batched_append=not args.no_batched_append,
        cuda_graphs=not args.no_cuda_graphs,
        overlap=not args.no_overlap,
        admission=args.admission,
        slow_motion=args.slow_motion,
    )


def open_engine(args: argparse.Namespace, knobs: Knobs, **settings: Any) -> Engine:
    """A started engine; ``settings`` are fields of ``EngineConfig``, which win over the flags.

    Raises ``EngineStartError`` (a ``ValueError``) with one line for the user.
    """
    config = dataclasses.replace(engine_config(args), **settings)
    from roseplay.engine.client import Engine  # bad flags are told before torch has loaded

    return Engine(shapes.resolve(args.model), config=config, knobs=knobs)


def workload(args: argparse.Namespace, source: PromptSource) -> Workload:
    """Raises ``ValueError`` for a bad value."""
    return make_workload(
        source,
        fixed_interval(args.num_requests, args.submit_interval_ms / 1e3),
        mix=PromptMix(repeats=tuple(args.prompt_repeats), unique=args.unique_prompts),
        params=SamplingParams(max_new_tokens=args.max_new_tokens, ignore_eos=args.no_stop_on_eos),
        seed=args.seed,
    )


def at_least(least: int) -> Any:
    """A reader of integers of at least so much."""

    def integer(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        return value

    return integer


def list_of_integers(text: str) -> list[int]:
    """Reads ``1,8,32``; each at least 1."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of integers of at least 1, such as 1,1,1,64")
    return numbers


def writable_file(text: str) -> Path:
    """An argument's path, if a file can be made there."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: no such directory")
    return path
