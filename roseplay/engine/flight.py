"""What runs steps, and a step between its launch and the moment its tokens are taken over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.core.step import Step, StepResult
from roseplay.engine.messages import EntryRecord


class Launched(Protocol):
    """What a model runner gives for a step it has launched."""

    def result(self) -> StepResult:
        """Wait for the step; raises what became of it."""


class Runner(Protocol):
    """What the worker needs of ``roseplay.model.runner.ModelRunner``."""

    num_blocks: int
    block_size: int
    logits_bytes: int
    runs_ahead: bool
    memory_limit: int | None

    @property
    def max_step_tokens(self) -> int | None: ...

    def predict_s(self, step: Step) -> float: ...
    def execute(self, step: Step) -> StepResult: ...
    def launch(self, step: Step) -> Launched: ...
    def info(self) -> EngineInfo: ...
    def free_memory(self) -> FreeMemory: ...
    def clear(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Done:
    """A step that nobody need wait for any more."""

    answer: StepResult

    def result(self) -> StepResult:
        return self.answer


@dataclass(frozen=True, slots=True)
class Flight:
    """A step in flight, and what is told of it when it is over.

    Attributes:
        entries: made when it was scheduled; the step behind it changes what they are made of.
    """

    step: Step
    launched: Launched
    entries: list[EntryRecord]
    start_ns: int
    schedule_ns: int
