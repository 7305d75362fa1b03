"""The clock of an engine, its traffic and its telemetry: the system's clock, or one that a simulation advances."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """An object that tells the time and can wait."""

    def now_ns(self) -> int:
        """Returns the nanoseconds since a fixed moment; never decreases."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait up to ``seconds`` for the event; returns whether it is set."""


class SystemClock:
    """The machine's own clock, ``time.perf_counter_ns``, which all its threads and processes share."""

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)


class VirtualClock:
    """Time that passes only where someone waits, and then at once.

    Args:
        now_ns: the time at the beginning.
    """

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        return self._now_ns

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not event.is_set():
            self.advance_to(self._now_ns + round(seconds * 1e9))
        return event.is_set()

    def advance_to(self, now_ns: int) -> None:
        """Set the time, unless it is later already."""
        self._now_ns = max(self._now_ns, now_ns)


SYSTEM_CLOCK = SystemClock()
