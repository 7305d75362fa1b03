"""A running comparison of A and B."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from roseplay.engine.errors import EngineError
from roseplay.lab.arms import arm_configs, open_engine, room, settings
from roseplay.lab.background import RUN_LIMIT_S, BackgroundJob, OpenEngine
from roseplay.lab.document import VERSION, completed
from roseplay.lab.engines import ArmEngines
from roseplay.lab.load import make_load, warm_up
from roseplay.lab.measuring import RunError, measure_run, run_record
from roseplay.lab.memory import fit
from roseplay.lab.progress import RunProgress, seconds_left
from roseplay.lab.spec import ARMS, Experiment, arms_in_turn
from roseplay.lab.spread import is_small
from roseplay.lab.summary import watched_values
from roseplay.traffic.environment import environment


class Job(BackgroundJob):
    """Runs an experiment beside a live engine, which is paused meanwhile.

    Args:
        live: a live engine or a ``ClosedEngine``; the arms' engines are configured like it.
        keep: stores the result and returns its id.
        open_engine: see ``arms.open_engine``.
        keep_cache: begin a run with what the runs before it left in the prefix cache of its engine.

    Raises:
        ValueError: the experiment cannot be run with this model; nothing has been started.
    """

    def __init__(
        self,
        experiment: Experiment,
        live: Any,
        keep: Callable[[dict[str, Any]], str],
        open_engine: OpenEngine = open_engine,
        run_limit_s: float = RUN_LIMIT_S,
        keep_cache: bool = False,
    ) -> None:
        super().__init__(live, keep, open_engine)
        self.experiment = experiment
        self._how: dict[str, Any] = {"time_limit_s": run_limit_s, "keep_cache": keep_cache}
        self._configs = arm_configs(live, experiment.arms)
        self._scenario, self._workload, self._prompt_tokens = make_load(
            experiment, live, room(self._configs, live.info)
        )
        self._warm_up = warm_up(self._workload, self._prompt_tokens)
        self._runs: list[RunProgress] = []
        for number in range(experiment.repeats):
            self._plan(number)

    def _plan(self, number: int) -> None:
        """Append the runs of the repeat of this number, from 0 on."""
        self._runs += [RunProgress(arm, number + 1, len(self._workload)) for arm in arms_in_turn(number)]

    def status(self) -> dict[str, Any]:
        """Returns the state and the progress, as the page shows them."""
        return {
            "id": self.job_id,
            "scenario": self._scenario.name,
            "title": self._scenario.title,
            "state": self.state,
            "error": self.error,
            "progress": [run.status() for run in self._runs],
            "left_s": seconds_left(self._runs) if self.state == "running" else None,
            "result": self.result,
        }

    # -- in the thread

    def _measure(self) -> None:
        """Measure all runs and keep the result; if stopped, keep the repeats that both arms have completed."""
        arms = self._open_arms()
        self._check_stop()
        self.state = "running"
        records: list[dict[str, Any]] = []
        try:
            while len(records) < len(self._runs):
                run = self._runs[len(records)]
                self._check_stop()
                records.append(self._measure_run(run, arms.get(run.arm)))
                if len(records) == len(self._runs) and self._wants_more(records):
                    self._plan(len(records) // len(ARMS))
        finally:
            repeats = len(records) // len(ARMS)
            if repeats and (len(records) == len(self._runs) or self._stop.is_set()):
                self.result = self._keep(self._document(arms, records[: repeats * len(ARMS)], repeats))

    def _wants_more(self, records: list[dict[str, Any]]) -> bool:
        """Whether another repeat is wanted, since the spread is larger than asked for."""
        most = self.experiment.max_spread_pct
        if most is None or len(records) // len(ARMS) >= self.experiment.most_repeats:
            return False
        watched = watched_values(records, self._scenario.watch, self.experiment.limits)
        return not all(is_small(values, most) for values in watched.values())

    def _open_arms(self) -> ArmEngines:
        """Open the arms' engines, together or in turn as memory allows."""
        knobs = {arm: self.experiment.arms[arm].knobs for arm in ARMS}
        at_once = max(arm_knobs.max_batch_size for arm_knobs in knobs.values())
        try:
            fitted = fit(self._live, self._configs, at_once, self._workload, self._prompt_tokens)
        except ValueError as error:
            raise RunError(str(error)) from None
        self._configs = dict(fitted.configs)
        self._arms = ArmEngines(
            self._live.model,
            fitted.configs,
            knobs,
            in_turn=fitted.in_turn,
            open_engine=self._open_engine,
            warm_up=self._warm,
            give_up=self._give_up,
        )
        self._arms.start()
        return self._arms

    def _warm(self, arm: str, engine: Any) -> None:
        self._check_stop()
        try:
            measure_run(engine, self._warm_up, stop=self._stop, **self._how)
        except (RunError, EngineError, TimeoutError) as error:
            raise RunError(f"arm {arm}, warm-up: {error}") from None

    def _measure_run(self, run: RunProgress, engine: Any) -> dict[str, Any]:
        run.start()
        try:
            played, steps = measure_run(engine, self._workload, stop=self._stop, on_sent=run.sent.append, **self._how)
        except BaseException as error:
            run.finish(cut=True)
            if isinstance(error, RunError | EngineError | TimeoutError):
                raise RunError(f"arm {run.arm}, run {run.repeat}: {error}") from None
            raise
        run.finish()
        return run_record(run.arm, run.repeat, played, steps, engine.capabilities)

    def _document(self, arms: ArmEngines, records: list[dict[str, Any]], repeats: int) -> dict[str, Any]:
        info, experiment = arms.infos["A"], self.experiment
        return completed(
            {
                "roseplay_lab": VERSION,
                "id": self.job_id,
                "name": experiment.name,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "scenario": self._scenario.name,
                "title": self._scenario.title,
                "look": list(self._scenario.look),
                "model": info.model,
                "device": info.server or info.device,
                "dtype": info.dtype or "as served",
                "environment": environment(threads=info.threads, device=info.device),
                "seed": experiment.seed,
                "repeats": repeats,
                "order": [record["arm"] for record in records],
                **({} if experiment.max_spread_pct is None else {"max_spread_pct": experiment.max_spread_pct}),
                "params": self._scenario.params(),
                "arms": {
                    arm: {
                        "knobs": experiment.arms[arm].knobs.to_dict(),
                        "config": settings(self._configs[arm], arms.infos[arm]),
                    }
                    for arm in ARMS
                },
                "limits": dict(experiment.limits),
                **({"traffic": experiment.traffic.document()} if experiment.traffic else {}),
                "runs": records,
            }
        )
