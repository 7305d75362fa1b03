"""``roseplay bench compare``: this engine beside transformers' own ways to generate, on the same work in turn.

Each contestant is a process of its own that keeps its model and answers run by run, so that a noisy minute of the machine
hits all of them. Another engine takes part as a command that prints one line of JSON with ``output_tokens_per_s``; ``{spec}``
in it becomes the path of a JSON file with the prompts' token ids, the arrival times and the rest of the contest.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roseplay.bench import flags
from roseplay.bench.peers import PEERS, Contest
from roseplay.bench.runs import BenchmarkError
from roseplay.traffic.environment import environment

BASE = "roseplay"
_STOP_WITHIN_S = 10


def add_command(commands: Any) -> None:
    """Register with the parser of ``roseplay bench``."""
    parser = commands.add_parser(
        "compare", help="this engine beside transformers' own", description=__doc__.split("\n\n")[1]
    )
    parser.add_argument("--peers", default=",".join(PEERS), type=_peers, help="contestants, with commas between")
    parser.add_argument(
        "--command", action="append", default=[], type=_named_command, metavar="NAME=COMMAND", help="another engine"
    )
    group = parser.add_argument_group("traffic")
    group.add_argument("--num-requests", type=flags.at_least(1), default=32, help="requests of a run")
    group.add_argument("--prompt-tokens", type=flags.at_least(1), default=4, help="length of a prompt repeated once")
    group.add_argument(
        "--prompt-repeats", type=flags.list_of_integers, default="1", metavar="N,N,...", help="as in bench streaming"
    )
    group.add_argument("--submit-interval-ms", type=float, default=0.0, help="from one request to the next; 0: burst")
    group.add_argument("--max-new-tokens", type=flags.at_least(1), default=32, help="tokens of each answer")
    group.add_argument("--max-batch-size", type=flags.at_least(1), default=32, help="this engine's running at once")
    flags.add_engine_flags(parser)
    flags.add_run_flags(parser, keep_cache=False, time_limit=False)
    parser.set_defaults(run=run, repeat_runs=3)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run all contestants in turn; print and return medians, ranges and ratios of their tokens/s."""
    contest = _contest(args)
    rates: dict[str, list[float]] = {name: [] for name in (*args.peers, *(name for name, _ in args.command))}
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "contest.json"
        spec.write_text(json.dumps(asdict(contest)))
        peers = {name: Peer(name, contest) for name in args.peers}
        try:
            for number in range(args.warmup_runs + args.repeat_runs):
                for name in rates:
                    rate = peers[name].run() if name in peers else _run_command(dict(args.command)[name], spec)
                    if number >= args.warmup_runs:
                        rates[name].append(rate)
        finally:
            for peer in peers.values():
                peer.close()
    medians = {name: statistics.median(found) for name, found in rates.items()}
    base = next(iter(medians))
    document = {
        "engines": {
            name: {"output_tokens_per_s": medians[name], "runs": found, "ratio": medians[base] / medians[name]}
            for name, found in rates.items()
        },
        "base": base,
        "requests": len(contest.prompts),
        "prompt_tokens": sum(map(len, contest.prompts)),
        "max_new_tokens": contest.max_new_tokens,
        "dtype": args.dtype,
        "environment": environment(threads=args.threads or 0, device=args.device),
    }
    _print(args, document)
    return document


def _contest(args: argparse.Namespace) -> Contest:
    """The same for the same flags: prompts of random token ids, as long as the repeats say."""
    flags.engine_config(args)  # a bad value is told before any contestant starts
    vocab_size, rng = _vocab_size(args.model), random.Random(args.seed)
    repeats = args.prompt_repeats
    lengths = [args.prompt_tokens * repeats[i % len(repeats)] for i in range(args.num_requests)]
    return Contest(
        model=args.model,
        config=flags.engine_settings(args),
        prompts=[[rng.randrange(3, vocab_size) for _ in range(length)] for length in lengths],
        arrivals_s=[i * args.submit_interval_ms / 1e3 for i in range(args.num_requests)],
        max_new_tokens=args.max_new_tokens,
        max_batch_size=args.max_batch_size,
    )


def _vocab_size(model: str) -> int:
    from transformers import AutoConfig

    from roseplay.model.source import find_source

    size: int = AutoConfig.from_pretrained(find_source(model)[0]).get_text_config().vocab_size
    return size


class Peer:
    """A contestant's process."""

    def __init__(self, name: str, contest: Contest) -> None:
        self.name = name
        self._tokens = len(contest.prompts) * contest.max_new_tokens
        self._process = subprocess.Popen(
            [sys.executable, "-m", "roseplay.bench.peers", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._ask(json.dumps(asdict(contest)))

    def run(self) -> float:
        """Tokens a second of one run."""
        told = self._ask("run")
        if told["tokens"] != self._tokens:
            raise BenchmarkError(f"{self.name} gave {told['tokens']} tokens where {self._tokens} were asked for")
        return float(told["tokens"] / told["wall_s"])

    def _ask(self, line: str) -> Any:
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        try:
            stdin.write(line + "\n")
            stdin.flush()
            answer = stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            why = (stderr.read().strip().splitlines() or ["it ended without a word"])[-1]
            raise BenchmarkError(f"{self.name} failed: {why}")
        return json.loads(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=_STOP_WITHIN_S)


def _run_command(command: str, spec: Path) -> float:
    arguments = [part.replace("{spec}", str(spec)) for part in shlex.split(command)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    try:
        return float(json.loads(done.stdout.strip().splitlines()[-1])["output_tokens_per_s"])
    except (IndexError, KeyError, TypeError, ValueError):
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise BenchmarkError(f"{arguments[0]} did not print JSON with output_tokens_per_s: {said}") from None


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
    for name, told in document["engines"].items():
        low, high = min(told["runs"]), max(told["runs"])
        ratio = "" if name == document["base"] else f"  {document['base']} is {told['ratio']:.2f}x"
        print(f"{name:<16} {told['output_tokens_per_s']:8.1f} tokens/s ({low:.1f} to {high:.1f}){ratio}")
