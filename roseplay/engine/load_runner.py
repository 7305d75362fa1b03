"""Loads the model that a worker runs, in its own process or in those of a tensor parallel group."""

from __future__ import annotations

from typing import Any

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.config import EngineConfig
from roseplay.core.progress import Reporter
from roseplay.engine.errors import EngineStartError
from roseplay.engine.followers import load_parallel_runner
from roseplay.engine.hardware import hardware
from roseplay.engine.runner import Runner, register_kernels


def load_model_runner(model: Any, config: EngineConfig, reporter: Reporter, clock: Clock = SYSTEM_CLOCK) -> Runner:
    """Load a model, with the kernels of its device. Raises ``EngineStartError`` as a ``RunnerFactory`` does."""
    if config.run_as is not None:
        return hardware().load_runner(model, config, reporter, clock)
    reporter.begin("libraries")
    try:
        if config.tensor_parallel_size == 1:
            return _load_whole(model, config, reporter)
        return load_parallel_runner(model, config, reporter)
    except Exception as error:
        from roseplay.model.device_errors import too_small_for_kernel
        from roseplay.model.errors import UnsupportedModelError
        from roseplay.model.kv_cache import KVCacheFormatError, KVCacheSizeError
        from roseplay.model.states import StateSlotsError

        cause = too_small_for_kernel(error) or error
        if isinstance(cause, (UnsupportedModelError, KVCacheFormatError, KVCacheSizeError, StateSlotsError)):
            raise EngineStartError(str(cause), reason=getattr(cause, "reason", None)) from error
        raise


def _load_whole(model: Any, config: EngineConfig, reporter: Reporter) -> Runner:
    register_kernels()

    from roseplay.model.loader import load_model
    from roseplay.model.runner import ModelRunner

    return ModelRunner(load_model(model, config, reporter), config, reporter)
