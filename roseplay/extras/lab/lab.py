"""The lab of a server: scenarios, results, and at most one running experiment."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from roseplay.config import Knobs
from roseplay.engine.engine_like import EngineLike
from roseplay.extras.lab.arms import OpenEngine, settings
from roseplay.extras.lab.document import Result
from roseplay.extras.lab.experiment import SIDE
from roseplay.extras.lab.job import Job
from roseplay.extras.lab.measures import MEASURES
from roseplay.extras.lab.order import DEFAULT_LIMITS, parse_experiment
from roseplay.extras.lab.servers import Servers
from roseplay.extras.lab.types import ARMS
from roseplay.extras.servers.engine import HttpEngine
from roseplay.play.tab import TabBusyError
from roseplay.traffic.own_traffic import OWN
from roseplay.traffic.pace import Speed
from roseplay.traffic.paced import paced
from roseplay.traffic.run_figures import FIGURES
from roseplay.traffic.scenario import PARAM_LIMITS, Scenario, Settings
from roseplay.traffic.scenarios import SCENARIOS

CAPACITY = 12  # results


class LabBusyError(TabBusyError):
    """Another experiment is running."""


class Store:
    """The newest results by ID, in memory; to last, they are kept in the browser."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._documents: OrderedDict[str, Result] = OrderedDict()

    def keep_opened(self, document: Result) -> str:
        """Store a result from a file under an ID derived from its content: its own ID may be taken. Returns the ID."""
        text = json.dumps({**document, "summary": None}, sort_keys=True)
        return self.keep(document, "file-" + hashlib.sha256(text.encode()).hexdigest()[:12])

    def get(self, document_id: str) -> Result | None:
        return self._documents.get(document_id)

    def keep(self, document: Result, document_id: str | None = None) -> str:
        """Store a result under an ID, by default its own; returns the ID."""
        document_id = document_id or document["id"]
        with self._lock:
            self._documents[document_id] = document
            self._documents.move_to_end(document_id)
            while len(self._documents) > CAPACITY:
                self._documents.popitem(last=False)
        return document_id


class Lab:
    """Experiments beside a live engine.

    Args:
        engine: the live engine, which is paused while an experiment runs; or a server, which experiments then use,
            along with those that it is to be compared with.
        open_engine: ``arms.open_engine`` by default.
        store: for results; an empty one by default.
        speed: returns how fast the engine computes; by default as measured at its start.
    """

    def __init__(
        self,
        engine: EngineLike,
        *,
        open_engine: OpenEngine | None = None,
        store: Store | None = None,
        speed: Callable[[], Speed | None] | None = None,
    ) -> None:
        self.store = Store() if store is None else store
        self._engine: EngineLike | Servers = engine
        if isinstance(engine, HttpEngine):
            self._engine = Servers([engine.address, *engine.others], engine)
        self._open_engine = open_engine
        self._speed = speed or (lambda: Speed.of(engine.info))
        self._lock = threading.Lock()
        self._job: Job | None = None
        self._closed = False

    @property
    def _knobs(self) -> Knobs:
        """From which arms start."""
        return self._engine.knobs if isinstance(self._engine, Servers) else Knobs()

    @property
    def running(self) -> bool:
        return self._job is not None and self._job.running

    def start(self, body: Any) -> Job:
        """Start an experiment, see ``order.ExperimentOrder``.

        Raises:
            ValueError: the experiment is invalid, or this model cannot run it.
            LabBusyError: another is running, or the lab is closed.
        """
        with self._lock:
            if self._closed:
                raise LabBusyError("the server is shutting down, and the lab starts no new runs")
            if self.running:
                raise LabBusyError("the lab is running already: wait for it, or stop it")
            experiment = parse_experiment(body, self._speed(), self._knobs)
            job = self._job = Job(experiment, self._engine, self.store.keep, self._open_engine)
            job.start()
        return job

    def stop(self) -> bool:
        """Stop the running experiment, without waiting; returns whether there was one."""
        job = self._job
        if job is None or not job.running:
            return False
        job.stop()
        return True

    def close(self, timeout: float = 10.0) -> None:
        """Stop for good, and wait up to ``timeout`` seconds until all engines of the lab are closed."""
        with self._lock:
            self._closed = True
        if self.stop() and self._job is not None:
            self._job.wait(timeout)

    def job(self, job_id: str) -> Job | None:
        """Returns the latest experiment if it has this ID."""
        return self._job if self._job is not None and self._job.job_id == job_id else None

    def describe(self) -> dict[str, object]:
        """Returns the page's data for its tab: scenarios (``own`` for traffic from a file), knobs, settings, state."""
        info, speed = self._engine.info, self._speed()
        knobs = info.settable(self._knobs.to_dict()) if self._engine.capabilities.knobs else {}
        knobs.pop("slow_motion", None)
        addresses = self._engine.addresses if isinstance(self._engine, Servers) else {}
        config = self._engine.config if not isinstance(self._engine, Servers) else next(iter(addresses.values()))
        return {
            "scenarios": [self._scenario(paced(scenario, speed)) for scenario in SCENARIOS.values()],
            "own": {**self._scenario(OWN), "params": {}},
            "knobs": knobs,
            "engine": {"model": info.model, **settings(config, info), "device": info.device},
            "servers": list(addresses),
            "limits": dict(DEFAULT_LIMITS),
            "figures": [asdict(FIGURES[name]) for name in MEASURES],
            "state": self._job.status() if self._job is not None else None,
        }

    def _scenario(self, scenario: Scenario) -> dict[str, object]:
        most = {"max_new_tokens": max(1, self._engine.info.max_model_len // 2)}
        params = {}
        numbers = {name: value for name, value in scenario.params().items() if name in PARAM_LIMITS}
        for name, value in numbers.items():
            low, high = PARAM_LIMITS[name]
            high = min(high, most.get(name, high))
            params[name] = {"default": min(value, high), "min": low, "max": high}
        return {
            "name": scenario.name,
            "title": scenario.title,
            "card": scenario.card,
            "look": list(scenario.look),
            **self._arms(scenario),
            "params": params,
            "watch": scenario.watch,
        }

    def _arms(self, scenario: Scenario) -> dict[str, Settings]:
        """Returns a scenario's settings in each arm and in both; for servers, only those that can be set from here."""
        arms = {arm.lower(): scenario.own(SIDE[arm]) for arm in ARMS}
        arms["common"] = {"knobs": dict(scenario.knobs), "config": dict(scenario.config)}
        if not isinstance(self._engine, Servers):
            return arms
        urls = list(self._engine.addresses)
        settable = self._engine.capabilities.knobs and len(urls) == 1  # two are compared under the same settings
        addresses = {"a": urls[0], "b": urls[1 % len(urls)]}
        for name, part in arms.items():
            config = {"url": addresses[name]} if name in addresses else {}
            arms[name] = {"knobs": self._engine.info.settable(part["knobs"]) if settable else {}, "config": config}
        return arms
