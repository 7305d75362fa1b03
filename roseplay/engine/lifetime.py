"""Ends engines that are not closed explicitly: when the program exits, and when the last reference is gone."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roseplay.core.request import FinishReason
from roseplay.engine.receiver import Receiver
from roseplay.engine.transport import Transport

CLOSE_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Connection:
    """The worker and the streams that it feeds, which end with the engine."""

    transport: Transport
    receiver: Receiver

    def end(self, timeout: float) -> None:
        """Stop the worker and end all streams with ``abort``."""
        self.transport.stop(timeout)
        self.receiver.end_all(FinishReason.ABORT, "the engine was closed")


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Returns a function that calls a bound method while its object exists, and does not keep the object alive."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        if (target := reference()) is not None:
            target(*args)

    return call


def end_forgotten(connection: Connection, exit_hook: Callable[..., None]) -> None:
    """End the worker of an engine that was garbage-collected; in a thread, since that may take as long as a step."""
    atexit.unregister(exit_hook)
    threading.Thread(target=connection.end, args=(CLOSE_TIMEOUT_S,), name="roseplay-end", daemon=True).start()
