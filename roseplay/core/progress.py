"""How far the start of an engine is: plain data that its worker reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

# In order. A start without a download reports none, one that fails does not come to the end.
STAGES = ("libraries", "download", "weights", "kernels", "warm-up")
REPORT_S = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one stage of a start is.

    Attributes:
        stage: one of ``STAGES``.
        done, total: in ``unit``; ``total`` is None where it is not known.
        unit: ``"bytes"``, ``"parts"`` (layers to prepare, and first steps) or ``"steps"``.
        note: what else there is to say, in a few words.
    """

    stage: str
    done: int = 0
    total: int | None = None
    unit: str = "parts"
    note: str = ""


class Reporter:
    """Counts what is done in a stage. Thread-safe.

    Args:
        send: called at the beginning of a stage, with its last count, and at most every ``REPORT_S`` in between; None
            where nobody listens.
        clock: seconds.

    Attributes:
        heard: whether somebody listens.
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
        """End the stage before and begin one."""
        with self._lock:
            self._flush()
            self._now = Progress(stage, 0, total, unit, note)
            self._flush()

    @property
    def stage(self) -> str | None:
        """The stage that began last."""
        return self._now.stage if self._now is not None else None

    def advance(self, amount: int = 1) -> None:
        """Count what has been done; more than the total is as much as the total."""
        self._change(lambda now: (now.done + amount, now.total))

    def expect(self, amount: int) -> None:
        """Raise the stage's total."""
        self._change(lambda now: (now.done, (now.total or 0) + amount))

    def count(self, done: int, total: int | None) -> None:
        """Set both numbers."""
        self._change(lambda now: (done, total))

    def end(self) -> None:
        """Send the last count."""
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
