"""Work of the lab in a thread, with the live engine paused and engines of its own."""

from __future__ import annotations

import logging
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from roseplay.engine.errors import EngineError
from roseplay.lab.engines import ArmEngines
from roseplay.lab.measuring import RunError, StoppedError

RUN_LIMIT_S = 120.0
_log = logging.getLogger(__name__)

OpenEngine = Callable[..., Any]


class BackgroundJob(ABC):
    """Measures beside a live engine, which is paused meanwhile.

    Args:
        live: a live engine or a ``ClosedEngine``.
        keep: stores the result and returns its id.
        open_engine: see ``arms.open_engine``.

    Attributes:
        state: ``starting``, ``running``, ``done``, ``stopped`` or ``error``.
        error: one line, if it failed.
        result: id of the result, once there is one.
    """

    def __init__(self, live: Any, keep: Callable[[dict[str, Any]], str], open_engine: OpenEngine) -> None:
        self.job_id = uuid.uuid4().hex[:12]
        self.state = "starting"
        self.error: str | None = None
        self.result: str | None = None
        self._live, self._keep, self._open_engine = live, keep, open_engine
        self._arms: ArmEngines | None = None
        self._stop = threading.Event()
        self._give_up = threading.Event()  # cancels starting engines: stopped, or one of them failed
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="roseplay-lab", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End as soon as possible; returns at once and may be called again."""
        self._stop.set()
        self._give_up.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; returns whether all engines are closed and the live one is resumed."""
        return self._ended.wait(timeout)

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Returns the state and the progress, as the page shows them."""

    @abstractmethod
    def _measure(self) -> None:
        """Open engines as ``_arms``, measure, and keep the result; called in the thread."""

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise StoppedError

    def _run(self) -> None:
        state, error = "error", ""
        try:
            self._live.pause()
            try:
                self._measure()
                state = "done"
            finally:
                if self._arms is not None:
                    self._arms.close()
                with suppress(EngineError):  # closed together with the server
                    self._live.resume()
        except StoppedError:
            state = "stopped"
        except (EngineError, RunError, TimeoutError) as failure:
            error = str(failure)
        except Exception as failure:
            _log.exception("an experiment failed")
            error = f"{type(failure).__name__}: {failure}".split("\n", 1)[0]
        if state == "error" and self._stop.is_set():
            state = "stopped"  # interrupted work raises errors of its own
        self.state, self.error = state, error if state == "error" else None
        self._ended.set()
