"""``roseplay bench compare``: this engine compared with transformers' own, on the same work in turn.

Each engine has a process of its own that keeps its model loaded, and the engines take turns run by run, so that a noisy
minute on the machine affects all of them. Another engine takes part as a command that prints one line of JSON with
``output_tokens_per_s``; ``{spec}`` in the command becomes the path of a JSON file with the prompts' token ids, the
arrival times and the other parameters.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roseplay.extras.bench import flags
from roseplay.extras.bench.peers import PEERS, Contest, contestant
from roseplay.extras.bench.process import Apart
from roseplay.extras.bench.runs import BenchmarkError, random_prompts


def add_flags(parser: argparse.ArgumentParser) -> None:
    flags.add(parser, "--peers", ",".join(PEERS), "engines to compare, separated by commas", type=_peers)
    parser.add_argument(
        "--command", action="append", default=[], type=_named_command, metavar="NAME=COMMAND", help="another engine"
    )
    group = parser.add_argument_group("traffic")
    flags.add(group, "--num-requests", 32, "requests in a run")
    flags.add(group, "--prompt-tokens", 4, "prompt length, multiplied by --prompt-repeats")
    flags.add_repeats_flag(group)
    flags.add(group, "--submit-interval-ms", 0.0, "time between requests; 0 sends them all at once")
    flags.add(group, "--max-new-tokens", 32, "tokens in each answer")
    flags.add(group, "--max-batch-size", 32, "requests that this engine runs at once, and the size of static batches")
    flags.add_engine_flags(parser)
    flags.add_run_flags(parser, repeat_runs=3)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run all contestants in turn; print and return the medians, ranges and ratios of their tokens/s."""
    contest, runs = contest_of(args), args.warmup_runs + args.repeat_runs
    rates = play_in_turn(contest, args.peers, dict(args.command), runs=runs, time_limit_s=args.time_limit_s)
    counted = {name: speeds[args.warmup_runs :] for name, speeds in rates.items()}
    medians = {name: statistics.median(speeds) for name, speeds in counted.items()}
    base = next(iter(medians))
    document = {
        "engines": {
            name: {"output_tokens_per_s": medians[name], "runs": speeds, "ratio": medians[base] / medians[name]}
            for name, speeds in counted.items()
        },
        "base": base,
        "requests": len(contest.prompts),
        "prompt_tokens": sum(map(len, contest.prompts)),
        "max_new_tokens": contest.max_new_tokens,
        "dtype": args.dtype,
    }
    _print(args, document)
    return document


def play_in_turn(
    contest: Contest, names: Sequence[str], commands: Mapping[str, str], *, runs: int, time_limit_s: float = 600.0
) -> dict[str, list[float]]:
    """Returns the tokens/s of each contestant's runs, by name. ``names`` are keys of ``PEERS``."""
    rates: dict[str, list[float]] = {name: [] for name in (*names, *commands)}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as peers:
        spec = Path(folder) / "contest.json"
        spec.write_text(json.dumps(asdict(contest)))
        opened = {name: peers.enter_context(closing(Peer(name, contest, time_limit_s))) for name in names}
        for _ in range(runs):
            for name, speeds in rates.items():
                if name in opened:
                    reply = opened[name].run()
                    speeds.append(reply["tokens"] / reply["wall_s"])
                else:
                    speeds.append(_run_command(commands[name], spec))
    return rates


def contest_of(args: argparse.Namespace) -> Contest:
    """Returns a contest with prompts of random token ids, which the flags determine."""
    flags.engine_config(args)  # to report bad values before any contestant starts
    from roseplay.model.loader import decoder_config  # takes seconds

    repeats = args.prompt_repeats
    lengths = [args.prompt_tokens * repeats[i % len(repeats)] for i in range(args.num_requests)]
    return Contest(
        model=args.model,
        config=flags.engine_settings(args),
        prompts=random_prompts(decoder_config(args.model).vocab_size, lengths, args.seed),
        arrivals_s=[i * args.submit_interval_ms / 1e3 for i in range(args.num_requests)],
        max_new_tokens=args.max_new_tokens,
        max_batch_size=args.max_batch_size,
    )


class Peer(Apart):
    """A contestant's process, which is given up if it takes longer than ``time_limit_s`` to answer."""

    def __init__(self, name: str, contest: Contest, time_limit_s: float) -> None:
        super().__init__(name, time_limit_s, contestant, name, contest)
        self._tokens = len(contest.prompts) * contest.max_new_tokens
        self.receive()

    def run(self) -> dict[str, Any]:
        """Returns the results of a run; raises ``BenchmarkError`` if it fails or has too few tokens."""
        with suppress(OSError):  # if it has ended, ``receive`` says why
            self.connection.send("run")
        reply: dict[str, Any] = self.receive()
        if reply["tokens"] != self._tokens:
            raise BenchmarkError(f"{self.name} generated {reply['tokens']} tokens instead of {self._tokens}")
        return reply


def _run_command(command: str, spec: Path) -> float:
    arguments = [part.replace("{spec}", str(spec)) for part in shlex.split(command)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    try:
        return float(json.loads(done.stdout.strip().splitlines()[-1])["output_tokens_per_s"])
    except (IndexError, KeyError, TypeError, ValueError):
        output = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise BenchmarkError(f"{arguments[0]} did not print JSON with output_tokens_per_s: {output}") from None


def _peers(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in PEERS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{text!r}: use some of {', '.join(PEERS)}, with commas between")
    return names


def _named_command(text: str) -> tuple[str, str]:
    name, equals, command = text.partition("=")
    if not (name and equals and command):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=COMMAND")
    return name, command


def _print(args: argparse.Namespace, document: dict[str, Any]) -> None:
    print(
        f"=== {args.model}, {args.dtype}, {document['requests']} requests, {document['prompt_tokens']} prompt tokens, "
        f"{document['max_new_tokens']} new ones each, {args.repeat_runs} runs ==="
    )
    for name, engine in document["engines"].items():
        low, high = min(engine["runs"]), max(engine["runs"])
        ratio = "" if name == document["base"] else f"  {document['base']} is {engine['ratio']:.2f}x"
        print(f"{name:<16} {engine['output_tokens_per_s']:8.1f} tokens/s ({low:.1f} to {high:.1f}){ratio}")
