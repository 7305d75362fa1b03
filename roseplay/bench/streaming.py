"""``roseplay bench streaming``: what each client of a stream of requests sees."""

from __future__ import annotations

import argparse
from typing import Any

from roseplay.bench import flags, report
from roseplay.bench.runs import play
from roseplay.traffic.prompts import prompt_source


def add_command(commands: Any) -> None:
    """Register with the parser of ``roseplay bench``."""
    parser = commands.add_parser(
        "streaming",
        help="latencies of a stream of requests: submit, queue, TTFT, TPOT, ITL, E2E",
        description="Send requests, stream their answers, and say how long clients waited for what.",
    )
    flags.add_traffic_flags(parser)
    flags.add_knob_flags(parser)
    flags.add_engine_flags(parser)
    flags.add_run_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Play the workload, print the figures and return them; raises ``ValueError`` and ``BenchmarkError``."""
    with flags.open_engine(args, flags.knobs(args)) as engine:
        source = prompt_source(engine.tokenizer, engine.info.vocab_size, args.prompt, seed=args.seed)
        runs = play(
            engine,
            flags.workload(args, source),
            warmup_runs=args.warmup_runs,
            repeat_runs=args.repeat_runs,
            keep_cache=args.keep_cache,
            time_limit_s=args.time_limit_s,
        )
        info = engine.info
        print("=== streaming benchmark ===")
        print("\n".join(report.lines(info, runs, random_weights=args.random_weights)))
        early = runs.median.ended_early
        if early:
            print(
                f"{early} of {args.num_requests} answers ended before {args.max_new_tokens} tokens, at an end-of-sequence"
                " token; --no-stop-on-eos keeps going"
            )
        return report.document(info, engine.knobs, runs, random_weights=args.random_weights)
