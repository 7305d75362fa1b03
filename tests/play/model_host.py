"""A host whose models are ``FakeEngine``s, each created at once, when a test says so, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from roseplay.config import EngineConfig, Knobs
from roseplay.core.progress import Progress
from roseplay.engine.errors import EngineStartError
from roseplay.play.engine_host import EngineHost, Start
from roseplay.play.engine_start import record_name
from roseplay.play.playground import Playground
from tests.play.fake_engine import FakeEngine

FIRST = "tiny-chat"
BROKEN = "its checkpoint lacks 3 weights, lm_head.weight for one"


class ModelHost:
    """Attributes:
    broken: models that cannot be loaded.
    held: while it is set, a start waits at its weights, unless it is cancelled.
    engines: all that were made.
    kind: of the playgrounds that are made.
    """

    def __init__(self, record: str | None = None, config: EngineConfig | None = None) -> None:
        self.broken: set[str] = set()
        self.held = threading.Event()
        self.engines: list[FakeEngine] = []
        self.starts: list[Start] = []
        self.kind = Playground
        self._record = record
        self.host = EngineHost(self._make, FIRST, config or EngineConfig(), Knobs().to_dict(), "roseplay play")
        self.host.page_is_made.set()
        self.host.begin()
        assert self.host.wait(30)

    def _make(self, start: Start) -> Playground:
        self.starts.append(start)
        assert all(not engine.alive for engine in self.engines), "two models are in memory"
        start.status.take(Progress("weights", 5_000_000, 10_000_000, "bytes"))
        while self.held.is_set():
            if start.cancelled.wait(0.01):
                raise EngineStartError("the start was cancelled")
        if start.model in self.broken:
            raise EngineStartError(f"{start.model} cannot be served: {BROKEN}", reason=BROKEN)
        engine = FakeEngine(run=True, step_s=0.02, model=start.model, ids=start.ids)
        engine.set_knobs(**start.knobs)
        self.engines.append(engine)
        record = self._record and record_name(self._record, start.number)
        return self.kind(engine, record=record, after=start.after)

    @property
    def engine(self) -> FakeEngine:
        return self.engines[-1]

    def switch(self, model: str) -> None:
        """Change the model and wait until that has finished."""
        self.host.switch(model, EngineConfig())
        assert self.host.wait(30)


@contextmanager
def model_host(record: str | None = None) -> Iterator[ModelHost]:
    made = ModelHost(record)
    try:
        yield made
    finally:
        made.held.clear()
        made.host.close()
