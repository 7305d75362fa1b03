"""The interface between the worker and a model: a runner that executes steps."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from roseplay.clock import Clock
from roseplay.config import EngineConfig
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.core.progress import Reporter
from roseplay.core.step import Step, StepResult


class Launched(Protocol):
    """A step that a model runner has launched."""

    def result(self) -> StepResult:
        """Wait for the step and return its result; raises the error with which it failed."""


@dataclass(slots=True)
class Done:
    """A step that was executed at once."""

    step_result: StepResult

    def result(self) -> StepResult:
        return self.step_result


class Runner(Protocol):
    """What the worker uses of ``roseplay.model.runner.ModelRunner`` and of runners of other ``hardware``."""

    num_blocks: int
    block_size: int
    logits_bytes: int
    runs_ahead: bool
    memory_limit: int | None

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def max_step_tokens(self) -> int | None: ...

    @property
    def token_cost(self) -> float: ...

    def predict_s(self, step: Step) -> float: ...
    def execute(self, step: Step) -> StepResult: ...
    def launch(self, step: Step) -> Launched: ...
    def info(self) -> EngineInfo: ...
    def free_memory(self) -> FreeMemory: ...
    def clear(self) -> None: ...
    def close(self) -> None: ...


# Makes the runner of a model and reports progress; raises ``EngineStartError``, with one line for the user, on failure.
RunnerFactory = Callable[[Any, EngineConfig, Reporter, Clock], Runner]


def register_kernels() -> None:
    """Import the kernels, which register themselves; without them the model computes the same tokens, more slowly.

    This also imports torch and transformers, so call it before importing ``roseplay.model``: looking for garbage while
    they create their many objects would take a quarter of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        import roseplay.kernels  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "roseplay.kernels":
            raise
    finally:
        if collects:
            gc.enable()
