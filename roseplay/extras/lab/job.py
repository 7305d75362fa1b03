"""A running experiment: a thread measures its points in rounds on its own engines while the live engine is paused."""

from __future__ import annotations

import itertools
import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from roseplay.core.info import EngineInfo
from roseplay.engine.errors import EngineError
from roseplay.extras.lab import arms
from roseplay.extras.lab.arms import LiveEngine, OpenArm, OpenEngine, arm_configs, evidence, room, settings
from roseplay.extras.lab.document import VERSION
from roseplay.extras.lab.engines import ArmEngines
from roseplay.extras.lab.experiment import Arm, Experiment, Point, in_turn
from roseplay.extras.lab.load import Load, PlayedLoad, PlayedLoads, fitted, warm_up
from roseplay.extras.lab.measuring import RunError, StoppedError, run_record
from roseplay.extras.lab.memory import check_held, fit
from roseplay.extras.lab.points import KNOBS
from roseplay.extras.lab.progress import RunProgress, seconds_left
from roseplay.extras.lab.results import completed
from roseplay.extras.lab.servers import Servers
from roseplay.formats.text import one_line
from roseplay.host_memory import free_memory
from roseplay.traffic.environment import environment

RUN_LIMIT_S = 120.0
_log = logging.getLogger(__name__)


def largest_bound(bounds: Sequence[float | None]) -> float | None:
    """Returns the largest bound of the arms' errors, which may be 0; ``None`` if one is not bounded."""
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None


class Job:
    """Runs an experiment while the live engine is paused. If it is stopped or fails, complete measurements are kept.

    Args:
        live: a live engine or a ``ClosedEngine``; the experiment's engines are configured like it.
        keep: stores the result and returns its id.
        open_engine: ``arms.open_engine`` by default.
        run_limit_s: a run that takes longer fails.
        keep_cache: start each run with the prefix cache that earlier runs left in its engine.
        cpu_time: measure the CPU time of this process in place of time, see ``arms.open_on_cpu_time``.

    Attributes:
        state: ``starting``, ``running``, ``done``, ``stopped`` or ``error``.
        error: one line, if it failed.
        result: ID of the result, once there is one.

    Raises:
        ValueError: the experiment cannot be run with this model; nothing has been started.
    """

    def __init__(
        self,
        experiment: Experiment,
        live: LiveEngine | Servers,
        keep: Callable[[dict[str, Any]], str],
        open_engine: OpenEngine | None = None,
        run_limit_s: float = RUN_LIMIT_S,
        keep_cache: bool = False,
        cpu_time: bool = False,
    ) -> None:
        self.job_id, self.experiment = uuid.uuid4().hex[:12], experiment
        self.state = "starting"
        self.error: str | None = None
        self.result: str | None = None
        self._live, self._keep, self._cpu_time = live, keep, cpu_time
        self._open_engine: OpenEngine = open_engine or (arms.open_on_cpu_time if cpu_time else arms.open_engine)
        self._how: dict[str, Any] = {"time_limit_s": run_limit_s, "keep_cache": keep_cache}
        self._configs = arm_configs(live, experiment.arms, varied=experiment.varied in KNOBS)
        self._evidence = evidence(live, self._configs)
        if self._evidence and not keep_cache:
            bound = largest_bound([arm.bound for arm in self._evidence.values()])
            self.experiment = experiment = experiment.simulated(bound)
        self._points = experiment.points()
        longest = room(self._configs, live.info)
        self._loads = list({id(point.load): point.load for point in self._points}.values())
        check_held(self._configs, self._loads, longest, free_memory())
        self._played = PlayedLoads(live, longest)
        self._scenario = experiment.scenario if experiment.traffic else fitted(experiment.scenario, longest)
        self._engines: ArmEngines | None = None
        self._runs: list[RunProgress] = []
        self._rounds = [self._plan(in_turn(self._points, number)) for number in range(experiment.rounds)]
        self._so_far: dict[str, Any] | None = None  # replaced as a whole, because other threads read it
        self._stop = threading.Event()
        self._give_up = threading.Event()  # cancels starting engines, on a stop or when one fails
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="roseplay-lab", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the job to end as soon as possible; returns at once. Idempotent."""
        self._stop.set()
        self._give_up.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; returns whether it came: all engines are closed and the live one is resumed."""
        return self._ended.wait(timeout)

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def status(self) -> dict[str, Any]:
        """Returns the state and the progress, for the page.

        ``so_far`` is the result that a sweep or a search would have if stopped now, without ``traffic``; ``None``
        before there is one.
        """
        runs = list(self._runs)
        return {
            "id": self.job_id,
            "kind": self.experiment.kind,
            "scenario": self._scenario.name,
            "title": self._scenario.title,
            "setting": self.experiment.varied,
            "rounds": self.experiment.rounds,  # 0 if each measurement may be the last
            "state": self.state,
            "error": self.error,
            "progress": [run.status() for run in runs],
            "left_s": seconds_left(runs) if self.state == "running" else None,
            "so_far": self._so_far,
            "result": self.result,
        }

    def _plan(self, points: Sequence[Point]) -> list[tuple[Point, RunProgress]]:
        """Plan a round over these points and add its runs to the progress."""
        planned = []
        for point in points:
            repeat = sum(run.label == point.label for run in self._runs) + 1
            about = point.about(varied=self.experiment.varied is not None)
            planned.append((point, RunProgress(point.label, repeat, point.load.scenario.num_requests, about)))
        self._runs += [run for _, run in planned]
        return planned

    # -- in the thread

    def _run(self) -> None:
        state, error = "error", ""
        try:
            longest = self._longest()
            self._live.pause()
            try:
                self._measure(longest)
                state = "done"
            finally:
                if self._engines is not None:
                    self._engines.close()
                with suppress(EngineError):  # it was closed with the server
                    self._live.resume()
        except StoppedError:
            state = "stopped"
        except (EngineError, RunError, TimeoutError) as failure:
            error = str(failure)
        except Exception as failure:
            _log.exception("an experiment failed")
            error = one_line(f"{type(failure).__name__}: {failure}")
        if state == "error" and self._stop.is_set():
            state = "stopped"  # interrupted work raises various errors
        self.state, self.error = state, error if state == "error" else None
        self._ended.set()

    def _measure(self, longest: Load) -> None:
        """Measure round after round; finally keep the complete measurements."""
        engines = self._open(self._played.make(longest))
        self._check_stop()
        self.state = "running"
        try:
            for number in itertools.count():
                if number == len(self._rounds):
                    self._rounds.append(self._plan(in_turn(self.experiment.again(self._points), number)))
                if not self._rounds[number]:
                    break
                for point, run in self._rounds[number]:
                    self._measure_point(engines, point, run)
        finally:
            document = self._document()
            if document is not None and any(document.get(name) for name in ("runs", "points")):
                self.result = self._keep(document)

    def _measure_point(self, engines: ArmEngines, point: Point, run: RunProgress) -> None:
        """Measure a point once and record the run."""
        self._check_stop()
        engine = engines.get(point.arm, point.knobs)
        workload = self._played.make(point.load).workload
        how = {**self._how, "clients": point.load.scenario.concurrency}
        run.start()
        measured = None
        try:
            measured = engine.run(workload, stop=self._stop, durations=point.durations, progress=run, **how)
        except (RunError, EngineError, TimeoutError) as error:
            raise RunError(f"{point.title}, run {run.repeat}: {error}") from None
        finally:
            run.finish(cut=measured is None)
        block_bytes = engine.info.kv_bytes_per_token * engine.info.block_size
        record = run_record(point.arm, run.repeat, measured, engine.capabilities, block_bytes)
        point.runs.append(self.experiment.record(record))
        if self.experiment.varied is not None:  # a comparison's requests are too much data to publish each time
            self._tell()

    def _open(self, longest: PlayedLoad) -> ArmEngines:
        """Open the engines, together or one at a time as memory allows."""
        at_once = max(point.knobs.max_batch_size for point in self._points)
        try:
            fits = fit(self._live, self._configs, at_once, longest.workload, longest.prompt_tokens)
        except ValueError as error:
            raise RunError(str(error)) from None
        self._configs = dict(fits.configs)
        few = warm_up(longest.workload, longest.prompt_tokens)

        def warm(arm: str, engine: OpenArm) -> None:
            self._check_stop()
            try:
                engine.run(few, stop=self._stop, **self._how)
            except (RunError, EngineError, TimeoutError) as error:
                raise RunError(f"arm {arm}, warm-up: {error}") from None

        self._engines = ArmEngines(
            self._live.model,
            fits.configs,
            {name: arm.knobs for name, arm in self.experiment.arms.items()},
            in_turn=fits.in_turn,
            open_engine=self._open_engine,
            warm_up=warm,
            give_up=self._give_up,
        )
        self._engines.start()
        return self._engines

    def _longest(self) -> Load:
        """Returns the load with the most prompt tokens. Makes each once; raises ``RunError`` if one cannot be made."""

        def tokens(load: Load) -> int:
            self._check_stop()
            return sum(self._played.make(load).prompt_tokens)

        try:
            return max(self._loads, key=tokens)
        except ValueError as error:
            raise RunError(str(error)) from None

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise StoppedError

    def _tell(self) -> None:
        """Publish the measurements so far in ``status``."""
        document = self._document()
        if document is not None:
            self._so_far = {name: value for name, value in document.items() if name != "traffic"}

    def _document(self) -> dict[str, Any] | None:
        """Returns the result of the measurements so far; ``None`` before anything is complete."""
        result = self.experiment.result(self._points)
        if result is None or self._engines is None:
            return None
        infos, experiment = self._engines.infos, self.experiment
        info = infos["A"]
        return completed(
            {
                "roseplay_lab": VERSION,
                "kind": experiment.kind,
                "id": self.job_id,
                "name": experiment.name,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "scenario": self._scenario.name,
                "title": self._scenario.title,
                "model": info.model,
                "device": " and ".join(dict.fromkeys(info.server or info.device for info in infos.values())),
                "dtype": info.dtype or "as served",
                "environment": environment(threads=info.threads, device=info.device),
                "seed": experiment.seed,
                "repeats": experiment.repeats,
                **({"cpu_time": True} if self._cpu_time else {}),
                **({} if experiment.max_spread_pct is None else {"max_spread_pct": experiment.max_spread_pct}),
                "params": self._scenario.params(),
                **({"traffic": experiment.traffic.document()} if experiment.traffic else {}),
                "arms": {name: self._arm(name, arm, infos[name]) for name, arm in experiment.arms.items()},
                "limits": dict(experiment.limits),
                **({} if experiment.varied is None else {"setting": experiment.varied}),
                **result,
            }
        )

    def _arm(self, name: str, arm: Arm, info: EngineInfo) -> dict[str, Any]:
        """Returns an arm's settings and, if it is simulated, what its figures are worth."""
        assert self._engines is not None
        knobs = self._engines.applied[name] if info.server else arm.knobs.to_dict()
        details: dict[str, Any] = {"knobs": knobs, "config": settings(self._configs[name], info)}
        if info.server_settings:
            details["server"] = dict(info.server_settings)
        if name in self._evidence:
            label, bound = self._evidence[name].label, self._evidence[name].bound
            error_pct = None if bound is None else round(100 * bound, 1)
            details["simulated"] = {"evidence": info.simulated, "label": label, "error_pct": error_pct}
        return details
