"""Starts an engine: applies its settings, opens its tokenizer, and waits until its worker is ready."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.config import EngineConfig, Knobs
from roseplay.core.info import EngineInfo
from roseplay.core.progress import Progress
from roseplay.engine.errors import EngineStartError
from roseplay.engine.hardware import hardware
from roseplay.engine.messages import Failed, Ready
from roseplay.engine.transport import Transport, WorkerGoneError
from roseplay.settings import settings_of

START_TIMEOUT_S = 900.0
POLL_S = 0.1

# Opens the tokenizer of a model; ``None`` if the model has none. Raises ``EngineStartError``.
TokenizerOpener = Callable[[Any, EngineConfig], Any]


def apply_settings(config: EngineConfig, knobs: Knobs, settings: dict[str, Any]) -> tuple[EngineConfig, Knobs]:
    """Returns both with ``settings`` applied by name; raises ``EngineStartError`` for an unknown name or bad value."""
    config_names, knob_names = settings_of(EngineConfig).keys(), settings_of(Knobs).keys()
    if unknown := sorted(set(settings) - config_names - knob_names):
        raise EngineStartError(f"unknown setting {', '.join(unknown)}: use a field of EngineConfig or Knobs")
    try:
        config = dataclasses.replace(config, **{k: v for k, v in settings.items() if k in config_names})
        knobs = knobs.changed({k: v for k, v in settings.items() if k in knob_names})
    except ValueError as error:
        raise EngineStartError(str(error)) from None
    if config.tensor_parallel_size > 1 and config.run_as is None:  # torch supports one process group per process
        config = dataclasses.replace(config, worker="process")
    return config, knobs


def check_worker(config: EngineConfig, model: Any, clock: Clock) -> None:
    """Raises ``EngineStartError`` for what a worker process cannot use: a model in memory, or a custom clock."""
    if config.worker == "thread":
        return
    split = config.tensor_parallel_size > 1 and config.run_as is None
    if not isinstance(model, str):
        instead = "save it and give its directory" if split else "use worker='thread'"
        raise EngineStartError(f"a model in memory cannot be sent to another process: {instead}")
    if clock is not SYSTEM_CLOCK:
        instead = "tensor_parallel_size 1 and worker='thread'" if split else "worker='thread'"
        raise EngineStartError(f"another process uses the system's clock: to use your own, set {instead}")


def open_tokenizer(model: Any, config: EngineConfig) -> Any | None:
    """Returns the model's tokenizer, ``None`` if it has none; raises ``EngineStartError`` if there is no such model."""
    from roseplay.model.errors import UnsupportedModelError
    from roseplay.model.tokenizer import load_tokenizer

    if config.run_as is not None:
        return hardware().tokenizer(model, config)
    try:
        return load_tokenizer(model, config)
    except UnsupportedModelError as error:
        raise EngineStartError(str(error), reason=error.reason) from None


class OpeningTokenizer:
    """Opens a tokenizer in a thread while a worker process loads the model.

    A program that ends during a large import waits for the thread, or it would crash.

    Args:
        open: opens the tokenizer.
    """

    def __init__(self, open: Callable[[], Any]) -> None:
        pool = ThreadPoolExecutor(1, "roseplay-tokenizer")
        self._opened = pool.submit(open)
        pool.shutdown(wait=False)

    def check(self) -> None:
        """Raises the error that opening the tokenizer raised, if any."""
        if self._opened.done():
            self._opened.result()

    def result(self, cancelled: threading.Event | None = None) -> Any:
        """Wait for the tokenizer and return it; raises what ``open`` raised, and ``EngineStartError`` if cancelled."""
        while wait([self._opened], POLL_S).not_done:
            _check_cancelled(cancelled)
        return self._opened.result()


@contextlib.contextmanager
def killed_on_error(transport: Transport) -> Iterator[None]:
    """Kills the worker if anything is raised inside the ``with`` block."""
    try:
        yield
    except BaseException:
        transport.kill()
        raise


def wait_until_ready(
    transport: Transport,
    cancelled: threading.Event | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    check: Callable[[], None] = lambda: None,
    timeout_s: float = START_TIMEOUT_S,
) -> EngineInfo:
    """Wait until a worker has started; raises ``EngineStartError`` if it fails, makes no progress or is cancelled.

    Args:
        on_progress: called with each ``Progress`` of the worker.
        check: called a few times a second; an error that it raises ends the wait.
        timeout_s: how long there may be no progress.
    """
    waited = 0.0
    while waited < timeout_s:
        _check_cancelled(cancelled)
        check()
        try:
            event = transport.receive(POLL_S)
        except WorkerGoneError as error:
            raise EngineStartError(f"{error} while it started") from None
        if isinstance(event, Ready):
            return event.info
        if isinstance(event, Failed):
            raise EngineStartError(event.message, reason=event.reason)
        if isinstance(event, Progress):
            waited = 0.0
            if on_progress is not None:
                on_progress(event)
        else:
            waited += POLL_S
    raise EngineStartError(f"the model was not loaded within {timeout_s:g} s")


def _check_cancelled(cancelled: threading.Event | None) -> None:
    if cancelled is not None and cancelled.is_set():
        raise EngineStartError("the start was cancelled")
