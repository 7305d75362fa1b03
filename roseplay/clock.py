"""The clock of an engine, its traffic and its telemetry: the system's clock, CPU time, or what a simulation advances."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

_LOOK_S = 0.002


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
    """Time that passes only where someone waits, and then at once. It begins at ``now_ns``."""

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


class CpuClock:
    """Counts the CPU time of this process, for a machine that other programs use as well.

    It adds up the time of all threads, as if one core did all of the work and had nothing else to do.

    While nothing is to be computed, waiting ends at once and the clock is advanced, like ``VirtualClock``.

    Attributes:
        is_idle: returns whether there is nothing to compute.
    """

    def __init__(self) -> None:
        self.is_idle: Callable[[], bool] = lambda: True
        self._skipped_ns = 0
        self._lock = threading.Lock()

    def now_ns(self) -> int:
        return time.process_time_ns() + self._skipped_ns

    def wait(self, event: threading.Event, seconds: float) -> bool:
        until_ns = self.now_ns() + round(seconds * 1e9)
        while not event.is_set() and self.now_ns() < until_ns:
            if self.is_idle():
                with self._lock:
                    self._skipped_ns += max(0, until_ns - self.now_ns())
            else:
                event.wait(_LOOK_S)
        return event.is_set()


SYSTEM_CLOCK = SystemClock()
