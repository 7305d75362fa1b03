"""A clock that counts the CPU time of this process, for a machine that other programs use as well."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_LOOK_S = 0.002


class CpuClock:
    """Counts the CPU time of all threads, as if one core did all of the work and had nothing else to do.

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
