"""Measurements of one engine at several values of one setting: what a sweep and a search have in common."""

from __future__ import annotations

import dataclasses
import statistics
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from roseplay.config import Knobs
from roseplay.engine.errors import EngineError
from roseplay.formats.text import number_text
from roseplay.lab.arms import arm_configs, open_engine, room, settings
from roseplay.lab.background import RUN_LIMIT_S, BackgroundJob, OpenEngine
from roseplay.lab.engines import ArmEngines
from roseplay.lab.load import make_load, warm_up
from roseplay.lab.measuring import RunError, measure_run, run_record
from roseplay.lab.memory import fit
from roseplay.lab.own_traffic import OwnTraffic, checked_object
from roseplay.lab.progress import RunProgress, seconds_left
from roseplay.lab.spec import (
    MAX_REPEATS,
    Arm,
    parse_arm,
    parse_limits,
    parse_load,
    parse_max_spread,
    parse_name,
    parse_seed,
)
from roseplay.lab.summary import MEASURES, keeps
from roseplay.settings import settings_of
from roseplay.traffic.environment import environment
from roseplay.traffic.pace import Speed
from roseplay.traffic.scenario import Scenario, checked_number
from roseplay.traffic.workload import Workload

Varied = Literal["rate_per_s", "prefill_max_tokens", "max_batch_size"]
RATE: Varied = "rate_per_s"
KNOBS: tuple[Varied, ...] = ("prefill_max_tokens", "max_batch_size")
MAX_VALUE = 1_000_000
COMMON = ("scenario", "traffic", "seed", "repeats", "params", "limits", "name", "a", "max_spread_pct", "length")
FIGURES_OF_A_RUN = (
    *("output_tokens_per_s", "goodput_req_s", "ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms"),
    *("itl_p50_ms", "itl_p99_ms", "e2e_p99_ms", "preemptions"),
)
Value = float | None
Point = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a sweep and a search have in common: the traffic, the settings that stay, and the repeats of each value."""

    scenario: Scenario
    traffic: OwnTraffic | None
    arm: Arm
    seed: int
    repeats: int
    limits: Mapping[str, float]
    name: str | None
    max_spread_pct: float | None = None


def parse_question(body: Mapping[str, Any], own: str, speed: Speed | None = None) -> Question:
    """Parse the fields that sweeps and searches share; ``a`` are the settings, the scenario's A if it is missing.

    Args:
        own: the field that only this kind of question has.
        speed: of the engine, see ``spec.parse_load``.

    Raises:
        ValueError: one sentence for the sender.
    """
    body = checked_object(body, f"a body with {own}", (*COMMON, own))
    seed = parse_seed(body.get("seed"))
    scenario, traffic = parse_load(body, seed, speed)
    repeats = 3 if body.get("repeats") is None else body["repeats"]
    return Question(
        scenario=scenario,
        traffic=traffic,
        arm=parse_arm(scenario, "A", body.get("a")),
        seed=seed,
        repeats=int(checked_number("repeats", repeats, 1, MAX_REPEATS)),
        limits=parse_limits(body.get("limits")),
        name=parse_name(body.get("name")),
        max_spread_pct=parse_max_spread(body.get("max_spread_pct")),
    )


def with_rate(question: Question, rate_per_s: float, seconds: float | None) -> Question:
    """Returns the question with its traffic at this rate, ``seconds`` long if that is given.

    Raises:
        ValueError: too many requests, or traffic that has no rate.
    """
    if question.traffic is not None:
        traffic = question.traffic.at_rate(rate_per_s)
        return dataclasses.replace(question, traffic=traffic)
    scenario = question.scenario
    arrivals = "poisson" if scenario.rate_per_s is None else scenario.arrivals
    count = scenario.num_requests if seconds is None else max(1, round(rate_per_s * seconds))
    scenario = dataclasses.replace(scenario, arrivals=arrivals, rate_per_s=float(rate_per_s))
    try:
        scenario = scenario.changed({"num_requests": count, "rate_per_s": rate_per_s})
    except ValueError as error:
        raise ValueError(f"{error}: choose a lower rate or fewer seconds") from None
    return dataclasses.replace(question, scenario=scenario)


def value_text(setting: Varied, value: Value) -> str:
    """Returns a value as sentences name it, as in ``6 req/s`` and ``prefill budget 64``."""
    if setting == RATE:
        return f"{number_text(value)} req/s"
    label = settings_of(Knobs)[setting].label.lower()
    return f"{label} {'unlimited' if value is None else number_text(value)}"


def values_of(point: Mapping[str, Any], figure: str) -> list[float | None]:
    """Returns a figure of a point in each repeat."""
    return [run[figure] for run in point["runs"]]


def runs_text(points: Iterable[Mapping[str, Any]]) -> str:
    """Returns how many runs there are of each point, as in ``3 to 9 runs``."""
    counts = sorted({len(point["runs"]) for point in points})
    return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) + (" run" if counts == [1] else " runs")


def verdict_text(row: Mapping[str, Any]) -> str:
    """Returns what a table says of a row of a summary, as in ``kept, not sure``; a sweep's rows are not judged further."""
    return ("kept" if row["kept"] else "broken") + ("" if row.get("sure", True) else ", not sure")


def spread(point: Mapping[str, Any], figure: str) -> dict[str, Any]:
    """Returns median and range of a figure over the repeats; ``None`` where it could not be measured."""
    known = [value for value in values_of(point, figure) if value is not None]
    if not known:
        return {"median": None, "range": [None, None]}
    return {"median": round(statistics.median(known), 4), "range": [min(known), max(known)]}


class PointJob(BackgroundJob):
    """Measures values of one setting on one engine, each run from an empty prefix cache.

    Args:
        setting: that is varied.
        question: as the result tells it.
        questions: by value; each with the traffic of that value.
        keep: stores the result and returns its id.
        run_limit_s: a run that takes longer fails.
        keep_cache: begin a run with what the runs before it left in the prefix cache.

    Raises:
        ValueError: it cannot be run with this model; nothing has been started.
    """

    kind: str

    def __init__(
        self,
        setting: Varied,
        question: Question,
        questions: Mapping[Value, Question],
        live: Any,
        keep: Callable[[dict[str, Any]], str],
        open_engine: OpenEngine = open_engine,
        run_limit_s: float = RUN_LIMIT_S,
        keep_cache: bool = False,
    ) -> None:
        super().__init__(live, keep, open_engine)
        self.setting = setting
        self._question = question
        self._how: dict[str, Any] = {"time_limit_s": run_limit_s, "keep_cache": keep_cache}
        self._configs = arm_configs(live, {"A": self._question.arm}, varied=setting != RATE)
        self._knobs: dict[Value, Knobs] = {}
        self._loads: dict[Value, tuple[Scenario, Workload, list[int]]] = {}
        made: dict[int, tuple[Scenario, Workload, list[int]]] = {}  # by question: a knob's values share one
        for value, asked in questions.items():
            changes: dict[str, Any] = {} if setting == RATE else {setting: value}
            self._knobs[value] = asked.arm.knobs.changed(changes)
            if id(asked) not in made:
                made[id(asked)] = make_load(asked, live, room(self._configs, live.info))
            self._loads[value] = made[id(asked)]
        self._title = self._question.scenario.title
        self._runs: list[RunProgress] = []
        self._points: list[Point] = []
        self._so_far: dict[str, Any] | None = None  # replaced as a whole, since other threads read it

    def status(self) -> dict[str, Any]:
        """Returns the state and the progress.

        ``so_far`` is the result as it would be if the job were stopped now, without ``traffic``; ``None`` before
        there is one.
        """
        return {
            "id": self.job_id,
            "kind": self.kind,
            "scenario": self._question.scenario.name,
            "title": self._title,
            "setting": self.setting,
            "state": self.state,
            "error": self.error,
            "progress": [run.status() for run in list(self._runs)],
            "left_s": seconds_left(list(self._runs)) if self.state == "running" else None,
            "so_far": self._so_far,
            "result": self.result,
        }

    @abstractmethod
    def _document(self) -> dict[str, Any]:
        """Returns the result of what has been measured, with its summary."""

    def _tell(self) -> None:
        """Have ``status`` tell what has been measured; called in the thread, as it grows."""
        self._so_far = {name: value for name, value in self._document().items() if name != "traffic"}

    def _open(self) -> Any:
        """Returns the engine, warmed up."""
        _, workload, prompt_tokens = max(self._loads.values(), key=lambda load: len(load[1]))
        at_once = max(knobs.max_batch_size for knobs in self._knobs.values())
        try:
            fitted = fit(self._live, self._configs, at_once, workload, prompt_tokens)
        except ValueError as error:
            raise RunError(str(error)) from None
        self._configs = dict(fitted.configs)

        def warm(_: str, engine: Any) -> None:
            self._check_stop()
            measure_run(engine, warm_up(workload, prompt_tokens), stop=self._stop, **self._how)

        self._arms = ArmEngines(
            self._live.model,
            fitted.configs,
            {"A": self._question.arm.knobs},
            in_turn=fitted.in_turn,
            open_engine=self._open_engine,
            warm_up=warm,
            give_up=self._give_up,
        )
        self._arms.start()
        return self._arms.get("A")

    def _measure_run(self, engine: Any, point: Point, run: RunProgress) -> None:
        """Measure the value of a point once more, and add the run's figures to it."""
        self._check_stop()
        value: Value = point["value"]
        _, workload, _ = self._loads[value]
        engine.set_knobs(**self._knobs[value].to_dict())
        run.start()
        try:
            played, steps = measure_run(engine, workload, stop=self._stop, on_sent=run.sent.append, **self._how)
        except BaseException as error:
            run.finish(cut=True)
            if isinstance(error, RunError | EngineError | TimeoutError):
                raise RunError(f"{run.arm}, run {run.repeat}: {error}") from None
            raise
        run.finish()
        record = run_record("A", run.repeat, played, steps, engine.capabilities)
        point["runs"].append(figures(record, self._question.limits))

    def _new_point(self, value: Value) -> Point:
        """Returns a point without runs."""
        return {"value": value, "requests": len(self._loads[value][1]), "runs": []}

    def _progress_of(self, value: Value, repeat: int) -> RunProgress:
        """Returns the progress of a run that has not begun, of a repeat of this number, from 1 on."""
        return RunProgress(value_text(self.setting, value), repeat, len(self._loads[value][1]))

    def _common(self) -> dict[str, Any]:
        """Returns the fields that the results of sweeps and searches share."""
        assert self._arms is not None
        info, question = self._arms.infos["A"], self._question
        return {
            "id": self.job_id,
            "name": question.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "scenario": question.scenario.name,
            "title": self._title,
            "model": info.model,
            "device": info.server or info.device,
            "dtype": info.dtype or "as served",
            "environment": environment(threads=info.threads, device=info.device),
            "seed": question.seed,
            "repeats": question.repeats,
            **({} if question.max_spread_pct is None else {"max_spread_pct": question.max_spread_pct}),
            "params": question.scenario.params(),
            **({"traffic": question.traffic.document()} if question.traffic else {}),
            "setting": self.setting,
            "settings": {
                "knobs": question.arm.knobs.to_dict(),
                "config": settings(self._configs["A"], info),
            },
            "limits": dict(question.limits),
        }


def figures(run: Mapping[str, Any], limits: Mapping[str, float]) -> dict[str, float | None]:
    """Returns the figures of a run; ``kept_pct`` is the share of requests within the limits."""
    kept = sum(keeps(request, limits) for request in run["requests"])
    found = {name: MEASURES[name](run, limits) for name in FIGURES_OF_A_RUN}
    found["kept_pct"] = 100 * kept / len(run["requests"])
    return {name: None if value is None else round(value, 4) for name, value in found.items()}
