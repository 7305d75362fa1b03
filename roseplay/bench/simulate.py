"""``roseplay bench simulate``: how well a simulation that is calibrated on three points predicts this machine's CPU.

In each of several rounds, the real engine decodes three batches on this CPU and plays scenarios of the lab. The cost model
is calibrated on the medians of the batches alone, and predicts the scenarios in virtual time. TPOT and ITL p50 should agree
with the measured ones within 10%, TTFT p50 within 20%.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from roseplay.bench import flags
from roseplay.bench.decode import DecodeSteps, decode_batch
from roseplay.bench.runs import play_once
from roseplay.clock import SYSTEM_CLOCK, CpuClock, VirtualClock
from roseplay.config import EngineConfig, Knobs
from roseplay.doctor.machine import this_cpu
from roseplay.engine.prompts import encode_prompt
from roseplay.engine.simulated import simulated_shape
from roseplay.lab.load import Load, make_load
from roseplay.sim.calibrated import Calibration
from roseplay.sim.calibration import LEAST_POINTS
from roseplay.sim.cost import CostModel
from roseplay.sim.evidence import cost_model
from roseplay.sim.outcome import Simulated, SimulatedRequest
from roseplay.sim.points import Measurement
from roseplay.sim.runner import SimulatedRunner
from roseplay.sim.virtual import VirtualServer
from roseplay.traffic.environment import environment
from roseplay.traffic.metrics import Metrics, Percentiles
from roseplay.traffic.scenarios import SCENARIOS
from roseplay.traffic.workload import Workload

if TYPE_CHECKING:
    from roseplay.engine.client import Engine

# Batch size and context of the measured points: a step's least cost, that of more requests, and that of longer ones.
_POINTS = "1x64,32x64,8x768"
_NEW_TOKENS = 32
_SUBMIT_S = 50e-6  # between two requests of a burst: the engine begins with the first alone
# The largest error that counts as predicted.
LIMITS: Mapping[str, float] = {"tpot": 0.10, "itl": 0.10, "ttft": 0.20}
# Scenarios whose settings the simulation has: no blocking admission, and no pool of another size.
_SCENARIOS = "batched-prefill,shared-head,token-budget,long-context,poisson"


@dataclass(frozen=True, slots=True)
class Arm:
    """A scenario with the settings of one side, and the requests that it sends, whose prompts are ``token_ids``."""

    scenario: str
    side: str
    knobs: Knobs
    workload: Workload
    token_ids: list[list[int]]


@dataclass(frozen=True, slots=True)
class Row:
    """An arm's p50 by figure, in ms.

    Attributes:
        measured: median of the rounds.
        measured_range: lowest and highest of the rounds.
    """

    scenario: str
    side: str
    predicted: dict[str, float]
    measured: dict[str, float]
    measured_range: dict[str, tuple[float, float]]

    def error(self, figure: str) -> float:
        """Returns the relative error of a figure, as a share."""
        return self.predicted[figure] / self.measured[figure] - 1

    def within(self, figure: str) -> bool:
        return abs(self.error(figure)) <= LIMITS[figure]


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("simulate")
    flags.add(group, "--points", _POINTS, "batch size and context of each point", type=_points, metavar="BxC,BxC,BxC")
    flags.add(group, "--scenarios", _SCENARIOS, "scenarios of the lab", type=_scenarios, metavar="NAME,NAME,...")
    group.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the CPU time of this process instead of time, on a machine that other programs use as well; with"
        " --threads 1",
    )
    flags.add_worker_flag(group, "thread")
    flags.add_engine_flags(parser)
    # An engine on a CPU replays a step of a size that has occurred a few times.
    flags.add_run_flags(parser, warmup_runs=6, repeat_runs=3)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, calibrate, predict and print; raises ``ValueError`` and ``BenchmarkError``."""
    if args.cpu_time and args.worker != "thread":
        raise ValueError("--cpu-time counts this process's CPU time: use --worker thread")
    clock = CpuClock() if args.cpu_time else SYSTEM_CLOCK
    with flags.open_engine(args, Knobs(), clock=clock, device="cpu", worker=args.worker) as engine:
        if isinstance(clock, CpuClock):
            clock.is_idle = lambda: not engine.num_unfinished
        info, arms = engine.info, _arms(engine, args)
        start = CostModel(simulated_shape(args.model), this_cpu())
        points, played = _measure(engine, args, arms)
        calibration = Calibration.of(start, points)
        _, evidence = cost_model(start.shape, start.gpu, 1, calibration)
        print(f"=== simulation of this CPU{', in CPU time' if args.cpu_time else ''}: {evidence} ===")
        rows = [_row(arm, predict(engine, calibration, arm), runs) for arm, runs in zip(arms, played, strict=True)]
    _print(rows)
    return {
        "model": info.model,
        "dtype": info.dtype,
        "cpu_time": args.cpu_time,
        "points": [asdict(point) for point in calibration.points],
        "rows": [asdict(row) | {"error": {name: row.error(name) for name in LIMITS}} for row in rows],
        "within": {name: sum(row.within(name) for row in rows) for name in LIMITS},
        "environment": environment(threads=info.threads, device=info.device),
    }


def _arms(engine: Engine, args: argparse.Namespace) -> list[Arm]:
    """Returns both sides of each scenario; their prompts are token ids, so that no time is spent on tokenizing."""
    info, found = engine.info, []
    for name in args.scenarios:
        scenario = SCENARIOS[name]
        workload = make_load(Load(scenario=scenario, seed=args.seed), engine, info.max_model_len).workload
        token_ids = [encode_prompt(one.prompt, engine.tokenizer, info.vocab_size) for one in workload]
        encoded = [replace(one, prompt=ids) for one, ids in zip(workload, token_ids, strict=True)]
        found += [Arm(name, side, knobs, encoded, token_ids) for side, knobs in scenario.arms().items()]
    return found


def _measure(
    engine: Engine, args: argparse.Namespace, arms: Sequence[Arm]
) -> tuple[list[Measurement], list[list[Metrics]]]:
    """Returns the points, and the metrics of each arm's runs.

    The points are measured again before each arm, so that a busy or slow minute of the machine affects both alike.
    """
    points: list[Measurement] = []
    played: list[list[Metrics]] = [[] for _ in arms]
    for number in range(args.warmup_runs + args.repeat_runs):
        counts = number >= args.warmup_runs
        for arm, runs in zip(arms, played, strict=True):
            found = _measure_points(engine, args)
            engine.set_knobs(**arm.knobs.to_dict())
            metrics = play_once(engine, arm.workload, time_limit_s=args.time_limit_s)
            if counts:
                points += found
                runs.append(metrics)
    return points, played


def _measure_points(engine: Engine, args: argparse.Namespace) -> list[Measurement]:
    engine.set_knobs(**Knobs(max_batch_size=max(batch for batch, _ in args.points), prefix_cache=False).to_dict())
    return [
        _measurement(decode_batch(engine, batch, context, _NEW_TOKENS, time_limit_s=args.time_limit_s), batch, context)
        for batch, context in args.points
    ]


def _measurement(steps: DecodeSteps, batch: int, context: int) -> Measurement:
    return Measurement(
        measured="itl",
        streams=batch,
        prompt=context,
        answer=_NEW_TOKENS,
        seconds=statistics.median(steps.period_ms) / 1e3,
        prompts_s=batch * context / steps.prefill_tokens_per_s,
    )


def _row(arm: Arm, predicted: dict[str, float], runs: Sequence[Metrics]) -> Row:
    values = {figure: [getattr(one, figure).p50 or 0.0 for one in runs] for figure in LIMITS}
    return Row(
        arm.scenario,
        arm.side,
        predicted,
        {figure: statistics.median(of) for figure, of in values.items()},
        {figure: (min(of), max(of)) for figure, of in values.items()},
    )


def predict(engine: Engine, calibration: Calibration, arm: Arm) -> dict[str, float]:
    """Returns p50 of TPOT, ITL and TTFT in ms, of an arm on a simulated engine with the real one's pool."""
    info, clock = engine.info, VirtualClock()
    config = EngineConfig(num_blocks=info.num_blocks, block_size=info.block_size, max_model_len=info.max_model_len)
    runner = SimulatedRunner(*cost_model(simulated_shape(engine.model), calibration.gpu, 1, calibration), config, clock)
    traffic = [
        SimulatedRequest(one.at_s + number * _SUBMIT_S, token_ids, one.params.max_new_tokens)
        for number, (one, token_ids) in enumerate(zip(arm.workload, arm.token_ids, strict=True))
    ]
    return p50s_ms(VirtualServer(runner, clock, arm.knobs).play(traffic))


def p50s_ms(simulated: Simulated) -> dict[str, float]:
    """Returns p50 of TPOT, ITL and TTFT in ms, as ``traffic.metrics`` defines them."""
    times = [simulated.token_times_ns(index) / 1e9 for index in range(len(simulated.requests))]
    arrived = [request.arrived_ns / 1e9 for request in simulated.requests]
    values = {
        "tpot": [(of[-1] - of[0]) / (len(of) - 1) for of in times if len(of) > 1],
        "itl": [gap for of in times for gap in of[1:] - of[:-1]],
        "ttft": [of[0] - at for of, at in zip(times, arrived, strict=True)],
    }
    return {figure: Percentiles.of_seconds(map(float, of)).p50 or 0.0 for figure, of in values.items()}


def _points(text: str) -> list[tuple[int, int]]:
    found = [re.fullmatch(r"(\d{1,5})x(\d{1,6})", part) for part in text.split(",")]
    points = [(int(one[1]), int(one[2])) for one in found if one]
    if len(points) < max(LEAST_POINTS, len(found)) or not all(batch and context for batch, context in points):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of at least {LEAST_POINTS} points, such as {_POINTS}")
    return points


def _scenarios(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in SCENARIOS:
            raise argparse.ArgumentTypeError(f"no scenario is called {name!r}: use {', '.join(SCENARIOS)}")
    return names


def _print(rows: Sequence[Row]) -> None:
    print(f"{'p50 in ms, predicted / measured':<34}" + "".join(f"{name.upper():>26}" for name in LIMITS))
    for row in rows:
        cells = (f"{row.predicted[n]:.2f} / {row.measured[n]:.2f} {row.error(n):+.0%}" for n in LIMITS)
        print(f"{row.scenario + ', ' + row.side:<34}" + "".join(f"{cell:>26}" for cell in cells))
    for name, limit in LIMITS.items():
        print(f"{name.upper():<5} within {limit:.0%}: {sum(row.within(name) for row in rows)} of {len(rows)}")
