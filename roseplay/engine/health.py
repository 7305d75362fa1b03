"""Whether a worker still answers: what it is doing, and for how long it may be silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# A worker from which an event is due is overdue after so many seconds, or so many times what its step is predicted to take.
OVERDUE_S = 3.0
OVERDUE_FACTOR = 3.0
# A step that is predicted to take long may take so many times as long before its worker is taken for frozen.
FROZEN_FACTOR = 10.0
# A process that does not run at all is replaced after so many seconds.
STOPPED_S = 10.0
# Silence counts only while this process runs: it was stopped itself when its own looks are further apart.
LOOKS_APART_S = 2.0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the engine answers, and in one line what it does or what is wrong with it."""

    ok: bool
    detail: str


@dataclass(slots=True)
class PendingPing:
    """A question that has been sent through the engine's loop; everybody who asks meanwhile waits for the same answer."""

    token: int
    answered: threading.Event = field(default_factory=threading.Event)


class Watchdog:
    """Measures a worker's silence against what it is doing.

    Args:
        timeout_s: silence after which a worker is taken for frozen, if its step is not predicted to take longer.
        clock: seconds.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._heard_at = self._looked_at = clock()
        self._step: int | None = None
        self._predicted_s = 0.0

    def heard(self) -> None:
        """Something came from the worker, or a new one has started, or the last answer that it owed is there."""
        self._heard_at = self._clock()

    def step_started(self, step_id: int, predicted_s: float) -> None:
        """A long step began."""
        self._step, self._predicted_s = step_id, predicted_s
        self.heard()

    def step_ended(self, step_id: int) -> None:
        if self._step is not None and step_id >= self._step:
            self.restarted()
        self.heard()

    def restarted(self) -> None:
        """Nothing is known of what the worker does."""
        self._step, self._predicted_s = None, 0.0
        self.heard()

    def look(self, expects: bool) -> None:
        """Called a few times a second. ``expects``: whether an event from the worker is due."""
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
        """What is wrong, in one line, when the worker should have answered by now."""
        silent_s = self.silent_for_s
        if silent_s <= max(OVERDUE_S, OVERDUE_FACTOR * self._predicted_s):
            return None
        doing = f" in a step predicted to take {self._predicted_s:.1f} s" if self._step is not None else ""
        return f"the engine has not answered for {silent_s:.0f} s{doing}"

    def frozen(self, slow_motion: float) -> str | None:
        """What is wrong, in one line, when no answer is to be expected any more."""
        limit_s = max(self._timeout_s * slow_motion, FROZEN_FACTOR * self._predicted_s)
        if self.silent_for_s <= limit_s:
            return None
        return f"the engine gave no sign of life for {limit_s:g} s"

    @property
    def doing(self) -> str:
        """What the worker is doing, as far as it is known."""
        if self._step is None:
            return "the engine is busy with a step"
        return f"the engine computes a long step, for {self.silent_for_s:.1f} s of about {self._predicted_s:.1f}"
