"""Fake engines for the lab's arms, and a lab whose runs take no time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from roseplay.config import EngineConfig, Knobs
from roseplay.lab.job import Job
from roseplay.lab.lab import Lab
from tests.play.fake_engine import FakeEngine

# Small enough for an engine that generates a word every 2 ms.
QUICK = {"num_requests": 3, "max_new_tokens": 4}
STEP_S = 0.002


class FakeArms:
    """Opens engines that run on their own, and keeps a list. ``on_open`` may raise, or wait for ``cancelled``."""

    def __init__(self, on_open: Callable[[EngineConfig, threading.Event], None] | None = None) -> None:
        self.engines: list[FakeEngine] = []
        self.step_s = STEP_S
        self._on_open = on_open

    def __call__(self, model: Any, config: EngineConfig, knobs: Knobs, cancelled: threading.Event) -> FakeEngine:
        if self._on_open is not None:
            self._on_open(config, cancelled)
        engine = FakeEngine(run=True, step_s=self.step_s)
        engine.model, engine.config = model, config
        engine.set_knobs(**knobs.to_dict())
        self.engines.append(engine)
        return engine

    @property
    def all_closed(self) -> bool:
        return all(not engine.alive for engine in self.engines)


def fake_lab(live: FakeEngine, arms: FakeArms | None = None) -> Lab:
    return Lab(live, open_engine=arms or FakeArms())


def ended(job: Job, timeout: float = 60.0) -> dict[str, Any]:
    """The status of a job once it has ended."""
    assert job.wait(timeout), "the lab did not end"
    return job.status()
