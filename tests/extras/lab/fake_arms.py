"""Arms of a lab that take no time: with made-up runs, or on fake engines."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from roseplay.config import EngineConfig, Knobs
from roseplay.core.info import FreeMemory
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.request_metrics import RequestMetrics
from roseplay.extras.lab.job import Job
from roseplay.extras.lab.lab import Lab
from roseplay.extras.lab.measuring import MeasuredAnswer, MeasuredRun, PlayedArm, RunTerms, StoppedError
from roseplay.extras.lab.results import parse_result
from roseplay.traffic.workload import Workload
from tests.play.fake_engine import INFO, FakeEngine

# Small enough for an engine that generates a word every 2 ms.
QUICK = {"num_requests": 3, "max_new_tokens": 4}
STEP_S = 0.002


class MadeUpArm:
    """An arm whose runs take no time.

    Attributes:
        stop: set when the job is stopped.
        keeps_cache: whether its last run, perhaps a warm-up, was to keep the cache.
    """

    info, tokenizer, capabilities = INFO, None, Capabilities()

    def __init__(self, figures: Callable[[MadeUpArm], Mapping[str, float]], config: EngineConfig, knobs: Knobs) -> None:
        self.config, self.knobs, self.alive = config, knobs, True
        self._figures = figures

    def set_knobs(self, **changes: Any) -> Knobs:
        self.knobs = self.knobs.changed(changes)
        return self.knobs

    def free_memory(self) -> FreeMemory:
        return FreeMemory(host=64 * 2**30)

    def close(self) -> None:
        self.alive = False

    def run(self, workload: Workload, terms: RunTerms) -> MeasuredRun:
        self.stop, self.keeps_cache = terms.stop, terms.keep_cache
        figures = {} if terms.progress is None else self._figures(self)  # a warm-up has no progress
        if terms.stop.is_set():
            raise StoppedError
        return made_up_run(workload, **figures)


def made_up_run(
    workload: Workload, *, ttft_ms: float = 5.0, itl_ms: float = 5.0, tokens_per_s: float | None = None
) -> MeasuredRun:
    """A run in which all requests have this TTFT and these gaps; with ``tokens_per_s``, they end when that is reached."""
    answers, tokens = [], sum(arrival.params.max_new_tokens for arrival in workload)
    for arrival in workload:
        sent_ns, count = round(arrival.at_s * 1e9), arrival.params.max_new_tokens
        first_ns, gaps = sent_ns + round(ttft_ms * 1e6), [round(itl_ms * 1e6)] * (count - 1)
        last_ns = first_ns + sum(gaps)
        metrics = RequestMetrics(
            sent_ns,
            len(arrival.prompt),
            scheduled_ns=sent_ns,
            first_token_ns=first_ns,
            last_token_ns=last_ns,
            finished_ns=last_ns if tokens_per_s is None else round(tokens / tokens_per_s * 1e9),
            completion_tokens=count,
            itl_ns=gaps,
        )
        answers.append(MeasuredAnswer(sent_ns, sent_ns, sent_ns, metrics, [0] * count, "length", arrival.params.tenant))
    return MeasuredRun(answers, [])


class MadeUpArms:
    """Opens such arms and keeps a list; ``most_open`` is how many of them were open at once.

    ``figures`` is called before each run but a warm-up, and returns arguments of ``made_up_run``. It may stop the lab, wait
    or raise.
    """

    def __init__(self, figures: Callable[[MadeUpArm], Mapping[str, float]] = lambda arm: {}) -> None:
        self.arms: list[MadeUpArm] = []
        self.most_open = 0
        self._figures, self._lock = figures, threading.Lock()

    def __call__(self, model: Any, config: EngineConfig, knobs: Knobs, cancelled: threading.Event) -> Any:
        with self._lock:
            self.arms.append(MadeUpArm(self._figures, config, knobs))
            self.most_open = max(self.most_open, sum(arm.alive for arm in self.arms))
            return self.arms[-1]

    @property
    def all_closed(self) -> bool:
        return not any(arm.alive for arm in self.arms)


def in_order(name: str, values: Iterable[float]) -> MadeUpArms:
    """Arms whose runs have these values of a figure, in the order of measurement; 5 for all after them."""
    left = itertools.chain(values, itertools.repeat(5.0))
    return MadeUpArms(lambda arm: {name: next(left)})


class FakeArms:
    """Opens engines that run on their own, and keeps a list. ``on_open`` may raise, or wait for ``cancelled``."""

    def __init__(self, on_open: Callable[[EngineConfig, threading.Event], None] | None = None) -> None:
        self.engines: list[FakeEngine] = []
        self.step_s = STEP_S
        self._on_open = on_open

    def __call__(self, model: Any, config: EngineConfig, knobs: Knobs, cancelled: threading.Event) -> PlayedArm:
        if self._on_open is not None:
            self._on_open(config, cancelled)
        engine = FakeEngine(run=True, step_s=self.step_s)
        engine.model, engine.config = model, config
        engine.set_knobs(**knobs.to_dict())
        self.engines.append(engine)
        return PlayedArm(engine)

    @property
    def all_closed(self) -> bool:
        return all(not engine.alive for engine in self.engines)


def fake_lab(live: FakeEngine, arms: MadeUpArms | FakeArms | None = None) -> Lab:
    return Lab(live, open_engine=arms or FakeArms())


def ended(job: Job, timeout: float = 60.0) -> dict[str, Any]:
    """The status of a job once it has ended."""
    assert job.wait(timeout), "the lab did not end"
    return job.status()


def ran(
    body: Any, arms: MadeUpArms | FakeArms | None = None, lab: Lab | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result of an order, which is also read from a file, and its job's status at the end."""
    lab = lab or fake_lab(FakeEngine(), arms or MadeUpArms())
    told = ended(lab.start(body))
    document = lab.store.get(told["result"])
    assert document is not None, told
    text = json.dumps(document)
    assert parse_result(text.encode()) == json.loads(text)
    return document, told
