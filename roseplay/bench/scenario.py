"""``roseplay bench scenario``: a scenario's traffic with its settings before and after, run by run in turn."""

from __future__ import annotations

import argparse
import dataclasses
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roseplay.bench import flags, report
from roseplay.bench.runs import Runs, play_once
from roseplay.traffic.metrics import LATENCIES, Metrics
from roseplay.traffic.prompts import QUESTIONS, prompt_source
from roseplay.traffic.scenario import Scenario
from roseplay.traffic.scenarios import SCENARIOS

if TYPE_CHECKING:
    from roseplay.engine.client import Engine


def add_command(commands: Any) -> None:
    """Register with the parser of ``roseplay bench``."""
    parser = commands.add_parser(
        "scenario",
        help="one serving idea, its switch off and on under the same traffic",
        description="Play the traffic of a scenario with its settings before and after. "
        + " ".join(f"{name}: {scenario.card}" for name, scenario in SCENARIOS.items()),
    )
    parser.add_argument("scenario", choices=SCENARIOS, metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument(
        "--prompt", help="text of a prompt, instead of the questions asked in turn; without a tokenizer its words count"
    )
    flags.add_engine_flags(parser)
    flags.add_run_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Play both arms in turn, so that a noisy minute hits both; print and return their figures."""
    scenario = SCENARIOS[args.scenario]
    arms = scenario.arms()
    metrics: dict[str, list[Metrics]] = {arm: [] for arm in arms}
    with ExitStack() as stack:
        engines = _open_engines(args, scenario, stack)
        info = engines["before"].info
        source = prompt_source(engines["before"].tokenizer, info.vocab_size, args.prompt or QUESTIONS, seed=args.seed)
        workload = scenario.workload(source, seed=args.seed)
        for number in range(args.warmup_runs + args.repeat_runs):
            for arm, knobs in arms.items():
                engine = engines[arm]
                engine.set_knobs(**knobs.to_dict())
                played = play_once(engine, workload, keep_cache=args.keep_cache, time_limit_s=args.time_limit_s)
                if number >= args.warmup_runs:
                    metrics[arm].append(played)
        infos = {arm: replace(engine.info, model=args.model) for arm, engine in engines.items()}
    runs = {arm: Runs(found) for arm, found in metrics.items()}
    documents = {
        arm: report.document(infos[arm], knobs, runs[arm], random_weights=args.random_weights)
        for arm, knobs in arms.items()
    }
    print(f"=== {scenario.title}: {scenario.card} ===")
    for arm in arms:
        print(f"--- {arm}: {_settings(scenario, arm)}")
        print("\n".join(report.lines(infos[arm], runs[arm], random_weights=args.random_weights)))
    print(f"--- {_verdict(scenario, runs['before'].median, runs['after'].median)}")
    return {"scenario": scenario.name, "watch": scenario.watch, **documents}


def _open_engines(args: argparse.Namespace, scenario: Scenario, stack: ExitStack) -> dict[str, Engine]:
    """An engine an arm; one for both where they differ in nothing that is fixed at start."""
    knobs, configs = scenario.arms(), scenario.configs()
    before = stack.enter_context(flags.open_engine(args, knobs["before"], **configs["before"]))
    if configs["before"] == configs["after"]:
        return {"before": before, "after": before}
    after = stack.enter_context(flags.open_engine(args, knobs["after"], **configs["after"]))
    return {"before": before, "after": after}


def _settings(scenario: Scenario, arm: str) -> str:
    knobs, config = dataclasses.asdict(scenario)[arm], dataclasses.asdict(scenario)[f"config_{arm}"]
    settings = {**knobs, **config}
    return ", ".join(f"{name}={'unlimited' if value is None else value}" for name, value in settings.items())


def _verdict(scenario: Scenario, before: Metrics, after: Metrics) -> str:
    """``submit: p50 47.00 -> 0.05, …`` and the like, of the figure that the scenario watches."""
    family = scenario.watch.split("_")[0]
    if family in LATENCIES:
        pairs = [
            f"{percent} {getattr(getattr(before, family), percent):.2f} -> "
            f"{getattr(getattr(after, family), percent):.2f} ms"
            for percent in ("p50", "p99")
        ]
        return f"{family}: {', '.join(pairs)}"
    return f"{scenario.watch}: {getattr(before, scenario.watch):.2f} -> {getattr(after, scenario.watch):.2f}"
