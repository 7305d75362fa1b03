"""The clock that an engine, its traffic and its telemetry go by: the system's, or one that a simulation moves on."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Whatever can tell the time and wait."""

    def now_ns(self) -> int:
        """Nanoseconds since a fixed moment; never falls."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set, at most so long; returns whether it is."""


class SystemClock:
    """The machine's own clock, ``time.perf_counter_ns``, which all its threads and processes have in common."""

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)


SYSTEM_CLOCK = SystemClock()
