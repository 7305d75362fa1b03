"""Ends engines that are not closed explicitly: when the program exits, and when the last reference is gone."""

from __future__ import annotations

import atexit
import threading
import weakref
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from roseplay.core.request import FinishReason
from roseplay.engine.receiver import Receiver
from roseplay.engine.transport import Transport

CLOSE_TIMEOUT_S = 10.0


class Closable(Protocol):
    """An object with a ``close`` method."""

    def close(self) -> None: ...


E = TypeVar("E", bound=Closable)


@dataclass(slots=True)
class Connection:
    """The worker and the streams that it feeds, which end with the engine."""

    transport: Transport
    receiver: Receiver

    def end(self, timeout: float) -> None:
        """Stop the worker and end all streams with ``abort``."""
        self.transport.stop(timeout)
        self.receiver.end_all(FinishReason.ABORT, "the engine was closed")


def close_at_exit(reference: weakref.ref[E]) -> None:
    """Close the engine if it still exists; called when the program exits."""
    engine = reference()
    if engine is not None:
        engine.close()


def end_forgotten(connection: Connection, exit_hook: partial[None]) -> None:
    """End the worker of an engine that was garbage-collected; in a thread, since that may take as long as a step."""
    atexit.unregister(exit_hook)
    threading.Thread(target=connection.end, args=(CLOSE_TIMEOUT_S,), name="roseplay-end", daemon=True).start()
