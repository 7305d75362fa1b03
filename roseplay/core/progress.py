"""The progress of an engine's start, as plain data that its worker reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

# In order. A start that needs no download skips that stage.
STAGES = ("libraries", "download", "weights", "kernels", "warm-up")
REPORT_S = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    stage: str  # one of ``STAGES``
    done: int = 0  # counts in ``unit``; ``total`` is None if it is not known
    total: int | None = None
    unit: str = "parts"  # ``"bytes"``, ``"parts"`` (layers to prepare, and first steps) or ``"steps"``
    note: str = ""  # a few words of detail; may be empty


class Reporter:
    """Counts the work done in each stage and reports it. Thread-safe.

    Args:
        send: called when a stage begins, with its final count, and at most every ``REPORT_S`` seconds in between; None
            to report nothing.
        clock: returns the time in seconds.

    Attributes:
        heard: whether ``send`` was given.
    """

    def __init__(
        self, send: Callable[[Progress], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.heard = send is not None
        self._send = send
        self._clock = clock
        self._lock = threading.Lock()
        self._now: Progress | None = None
        self._sent: Progress | None = None
        self._sent_at = 0.0

    def begin(self, stage: str, total: int | None = None, unit: str = "parts", note: str = "") -> None:
        """Begin a stage, which ends the one before."""
        with self._lock:
            self._flush()
            self._now = Progress(stage, 0, total, unit, note)
            self._flush()

    @property
    def stage(self) -> str | None:
        """The stage that began last."""
        return self._now.stage if self._now is not None else None

    def advance(self, amount: int = 1) -> None:
        """Add to what is done in the stage; the total is not exceeded."""
        self._change(lambda now: (now.done + amount, now.total))

    def expect(self, amount: int) -> None:
        """Add to the stage's total."""
        self._change(lambda now: (now.done, (now.total or 0) + amount))

    def count(self, done: int, total: int | None) -> None:
        """Set both what is done and the total."""
        self._change(lambda now: (done, total))

    def end(self) -> None:
        """Send the final count of the last stage."""
        with self._lock:
            self._flush()

    def _change(self, counted: Callable[[Progress], tuple[int, int | None]]) -> None:
        with self._lock:
            if self._now is None:
                return
            done, total = counted(self._now)
            self._now = replace(self._now, done=done if total is None else min(done, total), total=total)
            if self._clock() - self._sent_at >= REPORT_S:
                self._flush()

    def _flush(self) -> None:
        if self._send is not None and self._now is not None and self._now != self._sent:
            self._sent, self._sent_at = self._now, self._clock()
            self._send(self._now)
