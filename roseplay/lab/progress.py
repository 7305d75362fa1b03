"""How far an experiment is: its runs, and how long the rest may take."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from roseplay.traffic.driver import Outcome


@dataclass(slots=True)
class RunProgress:
    """One run; it waits until it is started."""

    arm: str
    repeat: int
    total: int
    started: float | None = None
    seconds: float | None = None
    cut: bool = False
    sent: list[Outcome] = field(default_factory=list)
    done: int = 0

    def start(self) -> None:
        self.started = time.monotonic()

    def finish(self, *, cut: bool = False) -> None:
        """It has ended; ``cut``: not by itself."""
        assert self.started is not None
        self.done = self._count()
        self.seconds, self.cut = time.monotonic() - self.started, cut
        self.sent = []  # with them go their answers

    @property
    def state(self) -> str:
        if self.started is None:
            return "waiting"
        return "running" if self.seconds is None else "stopped" if self.cut else "done"

    @property
    def elapsed(self) -> float:
        """Seconds since its start, or in all."""
        if self.seconds is not None:
            return self.seconds
        return 0.0 if self.started is None else time.monotonic() - self.started

    def status(self) -> dict[str, Any]:
        return {
            "arm": self.arm,
            "repeat": self.repeat,
            "done": self.done if self.seconds is not None else self._count(),
            "total": self.total,
            "seconds": round(self.elapsed, 2),
            "state": self.state,
        }

    def _count(self) -> int:
        return sum(outcome.stream is None or outcome.stream.finished for outcome in list(self.sent))


def seconds_left(runs: list[RunProgress]) -> float | None:
    """An estimate from the runs that have ended, those of the same arm where there are any; None before the first."""
    known = {run.arm: [] for run in runs}  # type: dict[str, list[float]]
    for run in runs:
        if run.seconds is not None:
            known[run.arm].append(run.seconds)
    everything = [seconds for found in known.values() for seconds in found]
    if not everything:
        return None
    left = 0.0
    for run in runs:
        if run.seconds is None:
            left += max(0.0, statistics.mean(known[run.arm] or everything) - run.elapsed)
    return round(left, 1)
