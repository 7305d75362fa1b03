"""Starting an engine: its settings, its tokenizer, and the wait for a worker that is ready."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from roseplay.config import EngineConfig, Knobs
from roseplay.core.info import EngineInfo
from roseplay.engine.errors import EngineStartError
from roseplay.engine.messages import Failed, Ready
from roseplay.engine.transport import Transport, WorkerGoneError
from roseplay.settings import former_names, settings_of

START_TIMEOUT_S = 900.0
POLL_S = 0.1


def apply_settings(config: EngineConfig, knobs: Knobs, settings: dict[str, Any]) -> tuple[EngineConfig, Knobs]:
    """Returns both, changed by ``settings`` of their names; raises ``EngineStartError`` for an unknown name or bad value."""
    config_names = {*settings_of(EngineConfig), *former_names(EngineConfig)}
    knob_names = settings_of(Knobs).keys()
    unknown = sorted(set(settings) - config_names - knob_names)
    if unknown:
        raise EngineStartError(f"unknown setting {', '.join(unknown)}: use a field of EngineConfig or Knobs")
    try:
        config = dataclasses.replace(config, **{k: v for k, v in settings.items() if k in config_names})
        knobs = knobs.changed({k: v for k, v in settings.items() if k in knob_names})
    except ValueError as error:
        raise EngineStartError(str(error)) from None
    return config, knobs


def open_tokenizer(model: Any, config: EngineConfig) -> Any | None:
    """Returns the model's tokenizer, ``None`` if it has none; raises ``EngineStartError`` if there is no such model."""
    from roseplay.model.loader import UnsupportedModelError
    from roseplay.model.tokenizer import load_tokenizer

    try:
        return load_tokenizer(model, config)
    except UnsupportedModelError as error:
        raise EngineStartError(str(error)) from None


def wait_until_ready(transport: Transport, cancelled: threading.Event | None = None) -> EngineInfo:
    """Wait until a worker has started; raises ``EngineStartError`` if it fails, takes too long or is cancelled.

    If the wait ends in any other way, by Ctrl-C for example, the worker is killed.
    """
    try:
        return _wait_until_ready(transport, cancelled)
    except BaseException:
        transport.kill()
        raise


def _wait_until_ready(transport: Transport, cancelled: threading.Event | None) -> EngineInfo:
    waited = 0.0
    while waited < START_TIMEOUT_S:
        if cancelled is not None and cancelled.is_set():
            raise EngineStartError("the start was cancelled")
        try:
            event = transport.receive(POLL_S)
        except WorkerGoneError as error:
            raise EngineStartError(f"{error} while it started") from None
        if isinstance(event, Ready):
            return event.info
        if isinstance(event, Failed):
            raise EngineStartError(event.message)
        waited += POLL_S
    raise EngineStartError(f"the model was not loaded within {START_TIMEOUT_S:.0f} s")
