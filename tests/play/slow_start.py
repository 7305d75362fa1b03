"""The start of an engine that proceeds when a test says so."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager

from roseplay.config import EngineConfig, Knobs
from roseplay.core.progress import Progress
from roseplay.play.engine_host import EngineHost, Start
from roseplay.play.playground import Playground
from tests.play.conftest import serving
from tests.play.fake_engine import FakeEngine

COMMAND = "roseplay play --model tiny-chat"
PATIENCE_S = 30


class SlowStart:
    """Starts a ``FakeEngine`` when told to; the server at ``address`` runs from the beginning."""

    def __init__(self) -> None:
        self.engine = FakeEngine(run=True, step_s=0.02)
        self.address = ""
        self._orders: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self.host = EngineHost(self._make, "gpt2", EngineConfig(), Knobs(max_batch_size=8).to_dict(), COMMAND)

    def _make(self, start: Start) -> Playground:
        while not start.cancelled.is_set():
            try:
                order = self._orders.get(timeout=0.05)
            except queue.Empty:
                continue
            if order is not None:
                raise order
            return Playground(self.engine)
        raise ValueError("the start was cancelled")

    def at(self, stage: str, done: int = 0, total: int | None = None, unit: str = "parts", note: str = "") -> None:
        self.host.status.take(Progress(stage, done, total, unit, note))

    def go_live(self) -> None:
        self._orders.put(None)
        assert self.host.wait(PATIENCE_S)

    def fail(self, error: Exception) -> None:
        self._orders.put(error)
        assert self.host.wait(PATIENCE_S)


@contextmanager
def serving_slow_start() -> Iterator[SlowStart]:
    slow = SlowStart()
    slow.host.begin()
    try:
        with serving(None, slow.host) as slow.address:
            yield slow
    finally:
        slow.host.close()
        slow.engine.close()
