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


SYSTEM_CLOCK = SystemClock()
