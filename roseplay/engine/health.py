"""Checks whether a worker still responds: what it is doing, and how long it may be silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# A worker that should send an event is overdue after this many seconds, or this many times the predicted step time.
OVERDUE_S = 3.0
OVERDUE_FACTOR = 3.0
# A worker counts as frozen once its step has taken this many times the predicted time.
FROZEN_FACTOR = 10.0
# A process that does not run at all is replaced after this many seconds.
STOPPED_S = 10.0
# If this process's own checks are further apart than this, it was stopped itself, and the time does not count.
LOOKS_APART_S = 2.0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the engine responds, and one line that says what it is doing or what is wrong with it."""

    ok: bool
    detail: str


@dataclass(slots=True)
class PendingPing:
    """A ping that was sent through the engine's loop; all callers until the reply share it."""

    token: int
    answered: threading.Event = field(default_factory=threading.Event)


class Watchdog:
    """Measures how long a worker has been silent, and whether its current step explains that.

    Args:
        timeout_s: a worker counts as frozen after this time, unless its step is predicted to take longer.
        clock: returns the time in seconds.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._heard_at = self._looked_at = clock()
        self._step: int | None = None
        self._predicted_s = 0.0

    def heard(self) -> None:
        """Restart the measurement: an event has arrived from the worker, or none is due."""
        self._heard_at = self._clock()

    def step_started(self, step_id: int, predicted_s: float) -> None:
        """Record the start of a step that is predicted to take long."""
        self._step, self._predicted_s = step_id, predicted_s
        self.heard()

    def step_ended(self, step_id: int) -> None:
        if self._step is not None and step_id >= self._step:
            self.restarted()
        self.heard()

    def restarted(self) -> None:
        """Forget what the worker was doing: its step has ended, or a new worker has started."""
        self._step, self._predicted_s = None, 0.0
        self.heard()

    def look(self, expects: bool) -> None:
        """Update the measurement; must be called a few times a second. ``expects``: whether an event is due."""
        now = self._clock()
        apart, self._looked_at = now - self._looked_at, now
        if apart > LOOKS_APART_S:
            self._heard_at += apart
        if not expects or self._heard_at > now:
            self._heard_at = now

    @property
    def silent_for_s(self) -> float:
        return self._clock() - self._heard_at

    def overdue(self) -> str | None:
        """Returns one line that says what is wrong if the worker should have responded by now, else None."""
        silent_s = self.silent_for_s
        if silent_s <= max(OVERDUE_S, OVERDUE_FACTOR * self._predicted_s):
            return None
        doing = f" in a step predicted to take {self._predicted_s:.1f} s" if self._step is not None else ""
        return f"the engine has not answered for {silent_s:.0f} s{doing}"

    def frozen(self, slow_motion: float) -> str | None:
        """Returns one line that says what is wrong if the worker counts as frozen, else None."""
        limit_s = max(self._timeout_s * slow_motion, FROZEN_FACTOR * self._predicted_s)
        if self.silent_for_s <= limit_s:
            return None
        return f"the engine gave no sign of life for {limit_s:g} s"

    @property
    def doing(self) -> str:
        """What the worker is doing, as far as is known."""
        if self._step is None:
            return "the engine is busy with a step"
        return f"the engine is computing a long step ({self.silent_for_s:.1f} s of about {self._predicted_s:.1f} s)"
