"""A running experiment: a thread measures its points in rounds on its own engines while the live engine is paused."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from roseplay.engine.errors import EngineError
from roseplay.extras.lab import arms
from roseplay.extras.lab.arms import ClosedEngine, LiveEngine, OpenArm, OpenEngine, arm_configs, evidence, room
from roseplay.extras.lab.document import VERSION, Arms, Header, Result, traffic_rows
from roseplay.extras.lab.engines import ArmEngines
from roseplay.extras.lab.experiment import Experiment, Point, in_turn
from roseplay.extras.lab.load import Load, PlayedLoad, PlayedLoads, fitted, warm_up
from roseplay.extras.lab.measures import figures
from roseplay.extras.lab.measuring import MeasuredRun, RunError, RunTerms, StoppedError, run_record
from roseplay.extras.lab.memory import check_held, fit
from roseplay.extras.lab.points import KNOBS
from roseplay.extras.lab.progress import RunProgress, seconds_left
from roseplay.extras.lab.results import completed
from roseplay.extras.lab.servers import Servers
from roseplay.formats.text import one_line
from roseplay.host_memory import free_memory
from roseplay.traffic.environment import environment
from roseplay.traffic.workload import Workload

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
        runs: those planned so far.
        so_far: the result that a sweep or a search would have if stopped now, without ``traffic``; ``None`` before
            there is one, and for a comparison.

    Raises:
        ValueError: the experiment cannot be run with this model; nothing has been started.
    """

    def __init__(
        self,
        experiment: Experiment,
        live: LiveEngine | Servers,
        keep: Callable[[Result], str],
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
        self._serving = None if isinstance(live, ClosedEngine | Servers) else live  # other clients may use the servers
        self._open_engine: OpenEngine = open_engine or (arms.open_on_cpu_time if cpu_time else arms.open_engine)
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
        self.runs: list[RunProgress] = []
        self._rounds = [self._plan(in_turn(self._points, number)) for number in range(experiment.rounds)]
        self.so_far: Result | None = None  # replaced as a whole, because other threads read it
        self._stop = threading.Event()
        self._terms = RunTerms(self._stop, run_limit_s, keep_cache)
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

    def status(self) -> dict[str, object]:
        """Returns the state and the progress, for the page."""
        runs = list(self.runs)
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
            "so_far": self.so_far,
            "result": self.result,
        }

    def _plan(self, points: Sequence[Point]) -> list[tuple[Point, RunProgress]]:
        """Plan a round over these points and add its runs to the progress."""
        planned = []
        for point in points:
            repeat = sum(run.label == point.label for run in self.runs) + 1
            about = point.about(varied=self.experiment.varied is not None)
            planned.append((point, RunProgress(point.label, repeat, point.load.scenario.num_requests, about)))
        self.runs += [run for _, run in planned]
        return planned

    # -- in the thread

    def _run(self) -> None:
        state, error = "error", ""
        try:
            longest = self._longest()
            if self._serving is not None:
                self._serving.pause()
            try:
                self._measure(longest)
                state = "done"
            finally:
                if self._engines is not None:
                    self._engines.close()
                if self._serving is not None:
                    with suppress(EngineError):  # it was closed with the server
                        self._serving.resume()
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
            if (document := self._document()) is not None:
                self.result = self._keep(document)

    def _measure_point(self, engines: ArmEngines, point: Point, run: RunProgress) -> None:
        self._check_stop()
        engine = engines.get(point.arm, point.knobs)
        workload, clients = self._played.make(point.load).workload, point.load.scenario.concurrency
        terms = dataclasses.replace(self._terms, clients=clients, durations=point.durations, progress=run)
        run.start()
        measured = None
        try:
            title = f"{point.label if self.experiment.varied else f'arm {point.label}'}, run {run.repeat}"
            measured = self._play(title, engine, workload, terms)
        finally:
            run.finish(cut=measured is None)
        block_bytes = engine.info.kv_bytes_per_token * engine.info.block_size
        record = run_record(point.arm, run.repeat, measured, engine.capabilities, block_bytes)
        if self.experiment.varied is None:
            point.whole_runs.append(record)
            return  # a comparison's requests are too much data to publish each time
        point.runs.append(figures(record, self.experiment.limits))
        if (so_far := self._document()) is not None:
            so_far.pop("traffic", None)
            self.so_far = so_far

    def _play(self, title: str, engine: OpenArm, workload: Workload, terms: RunTerms) -> MeasuredRun:
        """Run a workload on an engine; raises ``RunError``, which begins with the title."""
        self._check_stop()
        try:
            return engine.run(workload, terms)
        except (RunError, EngineError, TimeoutError) as error:
            raise RunError(f"{title}: {error}") from None

    def _open(self, longest: PlayedLoad) -> ArmEngines:
        """Open the engines, together or one at a time as memory allows."""
        at_once = max(point.knobs.max_batch_size for point in self._points)
        try:
            configs, one_by_one = fit(self._live, self._configs, at_once, longest)
        except ValueError as error:
            raise RunError(str(error)) from None
        few = warm_up(longest)
        self._engines = ArmEngines(
            self._live.model,
            configs,
            {name: arm.knobs for name, arm in self.experiment.arms.items()},
            in_turn=one_by_one,
            open_engine=self._open_engine,
            warm_up=lambda arm, engine: self._play(f"arm {arm}, warm-up", engine, few, self._terms),
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

    def _document(self) -> Result | None:
        """Returns the result of the measurements so far; ``None`` before anything is complete."""
        engines, experiment = self._engines, self.experiment
        if engines is None or len(engines.infos) < len(experiment.arms):
            return None
        info = engines.infos["A"]
        arms: Arms = {"A": engines.settings("A", self._evidence.get("A"))}
        if "B" in experiment.arms:
            arms["B"] = engines.settings("B", self._evidence.get("B"))
        header: Header = {
            "roseplay_lab": VERSION,
            "id": self.job_id,
            "name": experiment.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "scenario": self._scenario.name,
            "title": self._scenario.title,
            "model": info.model,
            "device": " and ".join(dict.fromkeys(each.server or each.device for each in engines.infos.values())),
            "dtype": info.dtype or "as served",
            "environment": environment(threads=info.threads, device=info.device),
            "seed": experiment.seed,
            "repeats": experiment.repeats,
            "params": self._scenario.params(),
            "arms": arms,
            "limits": experiment.limits,
        }
        if self._cpu_time:
            header["cpu_time"] = True
        if self._terms.keep_cache:
            header["keep_cache"] = True
        if experiment.max_spread_pct is not None:
            header["max_spread_pct"] = experiment.max_spread_pct
        if experiment.traffic is not None:
            header["traffic"] = traffic_rows(experiment.traffic)
        result = experiment.result(header, self._points)
        return None if result is None else completed(result)
