"""The progress of an experiment: its runs, and an estimate of the time left."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from roseplay.traffic.driver import Outcome


@dataclass(slots=True)
class RunProgress:
    """The progress of one run, initially not started."""

    label: str  # the name of what is measured
    repeat: int
    total: int
    # For programs: its arm and, if a setting is varied, its value and the simulated case.
    about: Mapping[str, float | str | None] = field(default_factory=dict)
    started: float | None = None
    seconds: float | None = None
    cut: bool = False
    sent: list[Outcome] = field(default_factory=list)  # the requests sent so far
    # Counts the requests that have ended, where they are not in ``sent``: in a simulation.
    ended: Callable[[], int] | None = None
    done: int = 0

    def start(self) -> None:
        self.started = time.monotonic()

    def finish(self, *, cut: bool = False) -> None:
        """Record the end of the run; ``cut`` if it was interrupted."""
        assert self.started is not None
        self.done = self._count()
        self.seconds, self.cut = time.monotonic() - self.started, cut
        self.sent, self.ended = [], None  # releases their streams

    @property
    def state(self) -> str:
        if self.started is None:
            return "waiting"
        return "running" if self.seconds is None else "stopped" if self.cut else "done"

    @property
    def elapsed(self) -> float:
        """Seconds since the start; the total once finished."""
        if self.seconds is not None:
            return self.seconds
        return 0.0 if self.started is None else time.monotonic() - self.started

    def status(self) -> dict[str, object]:
        return {
            "label": self.label,
            **self.about,
            "repeat": self.repeat,
            "done": self.done if self.seconds is not None else self._count(),
            "total": self.total,
            "seconds": round(self.elapsed, 2),
            "state": self.state,
        }

    def _count(self) -> int:
        if (ended := self.ended) is not None:
            return ended()
        return sum(outcome.stream is None or outcome.stream.finished for outcome in list(self.sent))


def seconds_left(runs: list[RunProgress]) -> float | None:
    """Estimate the time left from finished runs, preferably of the same point; ``None`` before the first has finished."""
    by_label: dict[str, list[float]] = {run.label: [] for run in runs}
    for run in runs:
        if run.seconds is not None:
            by_label[run.label].append(run.seconds)
    everything = [seconds for times in by_label.values() for seconds in times]
    if not everything:
        return None
    left = 0.0
    for run in runs:
        if run.seconds is None:
            left += max(0.0, statistics.mean(by_label[run.label] or everything) - run.elapsed)
    return round(left, 1)
