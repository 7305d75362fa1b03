"""A host whose models are ``FakeEngine``s, each created at once, when a test says so, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from roseplay.config import EngineConfig, Knobs
from roseplay.core.progress import Progress
from roseplay.engine.errors import EngineStartError
from roseplay.play.engine_host import EngineHost, Start
from roseplay.play.engine_start import record_name
from roseplay.play.playground import Playground
from tests.play.fake_engine import FakeEngine

FIRST = "tiny-chat"
BROKEN = "its checkpoint lacks 3 weights, lm_head.weight for one"
COMMAND = "roseplay play --model tiny-chat"
PATIENCE_S = 30


class ModelHost:
    """Attributes:
    broken: models that cannot be loaded; ``error``: what the next start raises.
    held: while it is set, a start waits at its weights, unless it is cancelled.
    engines: all that were made.
    kind: of the playgrounds that are made.
    """

    def __init__(
        self,
        record: str | None = None,
        *,
        model: str = FIRST,
        knobs: Knobs | None = None,
        held: bool = False,
        told: bool = True,
    ) -> None:
        self.broken: set[str] = set()
        self.error: Exception | None = None
        self.held = threading.Event()
        self.engines: list[FakeEngine] = []
        self.starts: list[Start] = []
        self.kind = Playground
        self._record = record
        first = model, EngineConfig(), (knobs or Knobs()).to_dict(), COMMAND
        self.host = EngineHost(self._make, *first, told=told)
        self.host.page_is_made.set()
        if held:
            self.held.set()
        self.host.begin()
        assert held or self.host.wait(PATIENCE_S)

    def _make(self, start: Start) -> Playground:
        self.starts.append(start)
        assert all(not engine.alive for engine in self.engines), "two models are in memory"
        if start.carried:
            start.status.take(Progress("weights", 5_000_000, 10_000_000, "bytes"))
        while self.held.is_set():
            if start.cancelled.wait(0.01):
                raise EngineStartError("the start was cancelled")
        if self.error is not None:
            raise self.error
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
        assert self.host.wait(PATIENCE_S)

    def close(self) -> None:
        self.held.clear()
        self.host.close()


class SlowStart(ModelHost):
    """A host whose first start proceeds when a test says so."""

    def __init__(self) -> None:
        super().__init__(model="gpt2", knobs=Knobs(max_batch_size=8), held=True)

    def at(self, stage: str, done: int = 0, total: int | None = None, unit: str = "parts", note: str = "") -> None:
        self.host.status.take(Progress(stage, done, total, unit, note))

    def go_live(self) -> None:
        self.held.clear()
        assert self.host.wait(PATIENCE_S)

    def fail(self, error: Exception) -> None:
        self.error = error
        self.go_live()


@contextmanager
def model_host(record: str | None = None, *, told: bool = True) -> Iterator[ModelHost]:
    with closing(ModelHost(record, told=told)) as models:
        yield models
