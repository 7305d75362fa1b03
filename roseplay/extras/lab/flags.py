"""The flags of ``roseplay lab``."""

from __future__ import annotations

import argparse

from roseplay.arguments import Parser, add_field_flags, add_model_flag, within
from roseplay.config import EngineConfig
from roseplay.extras.lab.document import MAX_REPEATS
from roseplay.extras.lab.job import RUN_LIMIT_S
from roseplay.extras.lab.order import DEFAULT_LIMITS, LENGTHS
from roseplay.extras.lab.points import KNOBS
from roseplay.extras.lab.types import ARMS
from roseplay.extras.servers.address import add_url_flags
from roseplay.traffic.scenarios import SCENARIOS

# The arguments of --sweep and --find, and the lab's names for them.
VARIED = {
    "rate": "rate_per_s",
    "prompt-tokens": "prompt_tokens",
    "prefill-budget": "prefill_max_tokens",
    "batch": "max_batch_size",
}
NOT_FLAGS = ("seed", "worker", "telemetry_steps", "kv_events")  # engine settings without a flag
_DESCRIPTION = (
    "Run the same seeded traffic under two settings, A and B, each on a new engine of its own, in the order "
    "A B B A ..., and report in sentences how the results differ."
)
_EXAMPLES = """\
examples:
  roseplay lab token-budget                          the scenario's own A and B
  roseplay lab token-budget --b prefill_max_tokens=128 --repeats 3
  roseplay lab poisson --a block_size=8 --b block_size=32 --model Qwen/Qwen3-0.6B
  roseplay lab admission --model gpt2-124m --random-weights --save result.json
  roseplay lab poisson --sweep rate --from 1 --seconds 5 --repeats 3
  roseplay lab swap --sweep prompt-tokens --from 64 --to 1024 --b preemption_mode=swap
  roseplay lab token-budget --find prefill-budget --itl-p99 20 --ttft-p95 250
  roseplay lab poisson --a run_as=h100 --b run_as=h200 --model qwen3-8b
  roseplay lab --traffic requests.csv --b max_batch_size=8
  roseplay lab poisson --url http://host:8000/v1 --url-b http://host:8001/v1 --repeats 3
  roseplay lab --spec result.json --json > again.json   repeat a result that the page exported

scenarios:
"""


def parser() -> Parser:
    """Returns the command-line parser of ``roseplay lab``."""
    scenarios = "\n".join(f"  {name:<18} {scenario.card}" for name, scenario in SCENARIOS.items())
    lab = Parser(
        prog="roseplay lab",
        description=_DESCRIPTION,
        epilog=_EXAMPLES + scenarios,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    lab.add_argument("scenario", nargs="?", metavar="SCENARIO", help="the traffic, and settings for A and B; see below")
    group = lab.add_argument_group("settings of the two arms")
    for arm in ARMS:
        group.add_argument(
            f"--{arm.lower()}",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"change a knob or an engine setting of {arm}; may be repeated",
        )
    group.add_argument(
        "--spec",
        metavar="FILE",
        help="read the experiment from a JSON file: a result that the lab exported, or a body of POST /ui/lab/run",
    )
    _add_experiment_flags(lab)
    _add_value_flags(lab)
    group = lab.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print the whole result as JSON, which the page can open")
    group.add_argument("--csv", action="store_true", help="print the values of --sweep or the tries of --find as CSV")
    group.add_argument("--save", metavar="FILE", help="also write the whole result to this file as JSON")
    group.add_argument("--report", metavar="FILE", help="also write the result to this file as an HTML report")
    add_url_flags(lab.add_argument_group("other servers instead of engines; A and B then have no engine settings"))
    group = lab.add_argument_group("engine of both arms")
    add_model_flag(group)
    add_field_flags(group, EngineConfig, leave_out=NOT_FLAGS)
    return lab


def _add_experiment_flags(lab: Parser) -> None:
    group = lab.add_argument_group("traffic and runs (defaults: those of the file or the scenario)")
    group.add_argument(
        "--traffic",
        metavar="FILE",
        help="send the requests of a file instead: JSONL or CSV with arrival_s, prompt (or prompt_tokens) and "
        "answer_tokens, or conversations as JSON; no SCENARIO is needed then",
    )
    group.add_argument("--seed", type=int, metavar="N", help="seed for prompts and arrival times (default: 0)")
    group.add_argument(
        "--repeats",
        type=int,
        metavar="N",
        help="runs of each arm (default: 1), or of each value (default: 3); simulated hardware has one, as all would be equal",
    )
    group.add_argument(
        "--max-spread",
        type=float,
        metavar="PCT",
        help=f"keep repeating, up to {MAX_REPEATS} times for each arm or value, until the spread of the scenario's "
        "metric is at most PCT percent of its median",
    )
    group.add_argument(
        "--length", type=int, choices=LENGTHS, help="multiply the number of the scenario's requests (default: 1)"
    )
    group.add_argument("--prompt", metavar="TEXT", help="text of each prompt, instead of a set of questions in turn")
    group.add_argument(
        "--keep-cache", action="store_true", help="keep cached blocks between runs, to measure with a warm prefix cache"
    )
    group.add_argument(
        "--cpu-time",
        action="store_true",
        help="measure the CPU time of the engine's process in place of time, on a machine that other programs use as "
        "well; for engines on a CPU, with --threads 1",
    )
    group.add_argument("--num-requests", type=int, metavar="N", help="requests in a run")
    group.add_argument("--max-new-tokens", type=int, metavar="N", help="tokens in each answer")
    group.add_argument("--concurrency", type=int, metavar="N", help="clients that each send again when answered")
    group.add_argument(
        "--rate-per-s",
        type=float,
        metavar="RATE",
        help="requests/s, for scenarios with a rate, or instead of the arrival times in the --traffic file",
    )
    for name, default, what in (
        ("ttft_ms", DEFAULT_LIMITS["ttft_ms"], "time to first token"),
        ("itl_ms", DEFAULT_LIMITS["itl_ms"], "99th percentile of inter-token latency, among its own tokens,"),
    ):
        group.add_argument(
            f"--limit-{name.replace('_', '-')}",
            dest=name,
            type=float,
            metavar="MS",
            help=f"goodput counts requests whose {what} is at most this (default: {default:g})",
        )
    group.add_argument(
        "--run-limit-s",
        type=within(0.001, 1e6),
        default=RUN_LIMIT_S,
        metavar="S",
        help="a run that takes longer fails (default: %(default)g)",
    )


def _add_value_flags(lab: Parser) -> None:
    group = lab.add_argument_group("one setting at many values; other settings are those of A")
    group.add_argument(
        "--sweep",
        choices=VARIED,
        help="measure this setting from --from to --to, in --repeats rounds; with --b, in A and in B, and report where "
        "they cross. prompt-tokens is the mean length of the scenario's prompts, whose texts are repeated accordingly",
    )
    group.add_argument(
        "--find",
        choices=[name for name, setting in VARIED.items() if setting in KNOBS],
        help="search for the largest prefill budget, or the largest batch, that keeps the limits --itl-p99 and --ttft-p95",
    )
    group.add_argument("--from", dest="from", type=float, metavar="X", help="first value")
    group.add_argument(
        "--to",
        type=float,
        metavar="X",
        help="last value; without it, a sweep of the rate doubles it until the limits are exceeded",
    )
    group.add_argument("--points", type=int, metavar="N", help="number of values in a sweep (default: 8)")
    group.add_argument("--seconds", type=float, metavar="S", help="how long requests arrive at each value of a sweep")
    group.add_argument("--itl-p99", type=float, metavar="MS", help="limit of ITL p99 in a search")
    group.add_argument("--ttft-p95", type=float, metavar="MS", help="limit of TTFT p95 in a search")
