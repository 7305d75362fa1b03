"""What runs steps for the worker, and the factory that makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from roseplay.config import EngineConfig
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.core.progress import Reporter
from roseplay.core.step import Step, StepResult
from roseplay.engine.errors import EngineStartError


class Launched(Protocol):
    """A step that a model runner has launched."""

    def result(self) -> StepResult:
        """Wait for the step and return its result; raises the error with which it failed."""


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was executed at once."""

    step_result: StepResult

    def result(self) -> StepResult:
        return self.step_result


class Runner(Protocol):
    """The part of ``roseplay.model.runner.ModelRunner`` that the worker uses."""

    num_blocks: int
    block_size: int
    logits_bytes: int
    runs_ahead: bool
    memory_limit: int | None

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def max_step_tokens(self) -> int | None: ...

    def predict_s(self, step: Step) -> float: ...
    def execute(self, step: Step) -> StepResult: ...
    def launch(self, step: Step) -> Launched: ...
    def info(self) -> EngineInfo: ...
    def free_memory(self) -> FreeMemory: ...
    def clear(self) -> None: ...
    def close(self) -> None: ...


# Makes the runner of a model and reports how far it is; raises ``EngineStartError`` with one line for the user if that is not possible.
RunnerFactory = Callable[[Any, EngineConfig, Reporter], Runner]


def load_model_runner(model: Any, config: EngineConfig, reporter: Reporter) -> Runner:
    """Load a model, with the kernels of its device. Raises ``EngineStartError`` as a ``RunnerFactory`` does."""
    reporter.begin("libraries")
    try:
        if config.tensor_parallel_size == 1:
            return _load_whole(model, config, reporter)
        from roseplay.engine.followers import load_parallel_runner

        return load_parallel_runner(model, config, reporter)
    except ValueError as error:
        from roseplay.model.errors import UnsupportedModelError
        from roseplay.model.kv_cache import KVCacheSizeError
        from roseplay.model.states import StateSlotsError

        if isinstance(error, (UnsupportedModelError, KVCacheSizeError, StateSlotsError)):
            raise EngineStartError(str(error)) from error
        raise


def _load_whole(model: Any, config: EngineConfig, reporter: Reporter) -> Runner:
    from roseplay.model.loader import load_model
    from roseplay.model.runner import ModelRunner

    register_kernels()
    return ModelRunner(load_model(model, config, reporter), config, reporter)


def register_kernels() -> None:
    """Import the kernels, which register themselves; without them the model computes the same, only slower."""
    try:
        import roseplay.kernels  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "roseplay.kernels":
            raise
