"""A step between its launch and the moment its tokens are taken over."""

from __future__ import annotations

from dataclasses import dataclass

from roseplay.core.step import Step, StepResult
from roseplay.engine.messages import EntryRecord
from roseplay.engine.runner import Launched


@dataclass(frozen=True, slots=True)
class Done:
    """A step that nobody need wait for any more."""

    answer: StepResult

    def result(self) -> StepResult:
        return self.answer


@dataclass(frozen=True, slots=True)
class Flight:
    """A step in flight, and what is published with its result.

    Attributes:
        entries: made when it was scheduled; the step behind it changes what they are made of.
    """

    step: Step
    launched: Launched
    entries: list[EntryRecord]
    start_ns: int
    schedule_ns: int
