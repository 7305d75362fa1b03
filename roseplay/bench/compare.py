"""``roseplay bench compare``: the traffic of a scenario with its switch before and after, run by run in turn."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from roseplay.bench import flags, report
from roseplay.bench.runs import Runs, play_once
from roseplay.traffic.metrics import LATENCIES, Metrics
from roseplay.traffic.prompts import prompt_source
from roseplay.traffic.scenarios import SCENARIOS, Scenario


def add_command(commands: Any) -> None:
    """Register with the parser of ``roseplay bench``."""
    parser = commands.add_parser(
        "compare",
        help="one serving idea, its switch off and on under the same traffic",
        description="Play the traffic of a scenario with its switch before and after. "
        + " ".join(f"{name}: {scenario.shows}." for name, scenario in SCENARIOS.items()),
    )
    parser.add_argument("scenario", choices=SCENARIOS, metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--prompt", default="Hello", help="text of a prompt; without a tokenizer its words count")
    flags.add_engine_flags(parser)
    flags.add_run_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Play both arms in turn, so that a noisy minute hits both; print and return their figures."""
    scenario = SCENARIOS[args.scenario]
    arms = scenario.arms()
    metrics: dict[str, list[Metrics]] = {arm: [] for arm in arms}
    with flags.open_engine(args, arms["before"]) as engine:
        source = prompt_source(engine.tokenizer, engine.info.vocab_size, args.prompt, seed=args.seed)
        workload = scenario.workload(source, seed=args.seed)
        for number in range(args.warmup_runs + args.repeat_runs):
            for arm, knobs in arms.items():
                engine.set_knobs(**knobs.to_dict())
                played = play_once(engine, workload, keep_cache=args.keep_cache, time_limit_s=args.time_limit_s)
                if number >= args.warmup_runs:
                    metrics[arm].append(played)
        info = replace(engine.info, model=args.model)
    runs = {arm: Runs(found) for arm, found in metrics.items()}
    documents = {
        arm: report.document(info, knobs, runs[arm], random_weights=args.random_weights) for arm, knobs in arms.items()
    }
    print(f"=== {scenario.name}: {scenario.shows} ===")
    for arm in arms:
        print(f"--- {arm}: {_settings(scenario, arm)}")
        print("\n".join(report.lines(info, runs[arm], random_weights=args.random_weights)))
    print(f"--- {_verdict(scenario, runs['before'].median, runs['after'].median)}")
    return {"scenario": scenario.name, "watch": scenario.watch, **documents}


def _settings(scenario: Scenario, arm: str) -> str:
    changed = scenario.before if arm == "before" else scenario.after
    return ", ".join(f"{name}={'unlimited' if value is None else value}" for name, value in changed.items())


def _verdict(scenario: Scenario, before: Metrics, after: Metrics) -> str:
    """``submit p50: 47.00 -> 0.05 ms`` and the like, of the figure that the scenario watches."""
    if scenario.watch in LATENCIES:
        pairs = [
            f"{percent} {getattr(getattr(before, scenario.watch), percent):.2f} -> "
            f"{getattr(getattr(after, scenario.watch), percent):.2f} ms"
            for percent in ("p50", "p99")
        ]
        return f"{scenario.watch}: {', '.join(pairs)}"
    return f"{scenario.watch}: {getattr(before, scenario.watch):.2f} -> {getattr(after, scenario.watch):.2f}"
