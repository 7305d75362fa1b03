"""Steady traffic: requests arrive at a rate, whether or not earlier ones have been answered, until it is stopped.

That is an open loop: when the engine falls behind, its queue grows, as behind a public service.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, get_args

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.play.bursts import LABELS, kind_of
from roseplay.recording.request_registry import TrackedRequest
from roseplay.texts import one_line, shown
from roseplay.traffic.arrivals import Spacing, endless

LEAST_RATE, MOST_RATE = 0.1, 50.0  # requests a second
MOST_WAITING = 64  # requests of one traffic that wait in the queue
MOST_S = 3600.0
_LOOK_S = 0.5  # how often it looks whether its tab is still there


@dataclass(frozen=True, kw_only=True)
class SteadyPlan:
    """What arrives. Raises ``ValueError`` for a value out of range.

    Attributes:
        rate: requests a second, on average.
        spacing: ``poisson`` draws the gaps between requests, ``even`` keeps them equal.
        kind: of the prompts, as of a burst.
        max_new_tokens: of each answer.
        seed: the same seed gives the same prompts, and with ``poisson`` the same gaps.
    """

    rate: float
    spacing: Spacing
    kind: str
    max_new_tokens: int
    seed: int

    def __post_init__(self) -> None:
        number = isinstance(self.rate, int | float) and not isinstance(self.rate, bool)
        if not number or not LEAST_RATE <= self.rate <= MOST_RATE:
            raise ValueError(f"the rate is {shown(self.rate)}: use {LEAST_RATE:g} to {MOST_RATE:g} requests a second")
        if self.spacing not in get_args(Spacing):
            raise ValueError(f"the spacing is {shown(self.spacing)}: use {' or '.join(get_args(Spacing))}")
        object.__setattr__(self, "kind", kind_of(self.kind))


class SteadyTraffic:
    """The steady traffic of one tab, sent by a thread of its own from ``start`` on.

    Args:
        send: submits request ``index``.
        is_watched: whether somebody still looks at the tab; once nobody does, the traffic ends.
        clock: the engine's.
    """

    def __init__(
        self,
        plan: SteadyPlan,
        send: Callable[[int], TrackedRequest],
        is_watched: Callable[[], bool],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._order = plan, send  # replaced as one
        self._is_watched = is_watched
        self._clock = clock
        self._stopping = threading.Event()
        self._abort = False
        self._unfinished: list[TrackedRequest] = []  # replaced, never changed: others read it
        self._sent = 0
        self._begun_ns = clock.now_ns()
        self._ended_ns: int | None = None
        self._reason: str | None = None
        self._thread = threading.Thread(target=self._run, name="roseplay-steady", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def plan(self) -> SteadyPlan:
        return self._order[0]

    def change(self, plan: SteadyPlan, send: Callable[[int], TrackedRequest]) -> None:
        """Go on under another plan: requests are numbered on, and the next one comes a gap of the new rate later."""
        self._order = plan, send

    def stop(self, *, abort: bool = False) -> None:
        """Send no more; what was sent is answered. ``abort``: a request that is being submitted now is aborted."""
        self._abort = self._abort or abort
        self._stopping.set()

    @property
    def running(self) -> bool:
        return self._ended_ns is None and not self._stopping.is_set()

    def figures(self) -> dict[str, Any]:
        """Returns the plan, whether it runs, what was sent and answered, and why it stopped by itself, if it did."""
        plan, sent = self.plan, self._sent
        unfinished = [tracked for tracked in self._unfinished if not tracked.finished]
        return {
            "on": self.running,
            **dataclasses.asdict(plan),
            "label": LABELS[plan.kind],
            "sent": sent,
            "done": max(0, sent - len(unfinished)),
            "waiting": _waiting(unfinished),
            "seconds": round(self._seconds()),
            "stopped": self._reason,
        }

    def _seconds(self) -> float:
        """How long it has run."""
        until = self._clock.now_ns() if self._ended_ns is None else self._ended_ns
        return (until - self._begun_ns) / 1e9

    def _run(self) -> None:
        try:
            self._reason = self._send_all()
        except (EngineBusyError, EngineError, ValueError) as error:
            self._reason = one_line(error)
        finally:
            self._ended_ns = self._clock.now_ns()

    def _send_all(self) -> str | None:
        """Send requests until there is a reason to stop; returns it, ``None`` where ``stop`` was called."""
        order, due = None, 0.0
        arrivals: Iterator[float] = iter(())
        while not self._stopping.is_set():
            reason = self._limit()
            if reason:
                return reason
            if order is not self._order:
                order = self._order
                arrivals = self._arrivals(order[0])
                due = next(arrivals)
            delay = due - self._seconds()
            if delay > 0:
                self._clock.wait(self._stopping, min(delay, _LOOK_S))
                continue
            tracked = order[1](self._sent)
            if self._abort or not self._is_watched():  # while it was being submitted
                tracked.stream.cancel()
            self._unfinished = [*(one for one in self._unfinished if not one.finished), tracked]
            self._sent += 1
            due = next(arrivals)
        return None

    def _arrivals(self, plan: SteadyPlan) -> Iterator[float]:
        """Yields the seconds at which the next requests arrive. After a change the seed's gaps go on, from now."""
        arrivals = islice(endless(plan.spacing, plan.rate, seed=plan.seed), max(0, self._sent - 1), None)
        begun = self._seconds() - next(arrivals) if self._sent else 0.0
        return (begun + at_s for at_s in arrivals)

    def _limit(self) -> str | None:
        """Why it has to stop, if it has."""
        if not self._is_watched():
            return "its tab has gone"
        waiting = _waiting(self._unfinished)
        if waiting >= MOST_WAITING:
            return f"{waiting} requests were waiting, the limit is {MOST_WAITING}"
        return f"it ran for {MOST_S / 60:g} minutes, the limit" if self._seconds() > MOST_S else None


def _waiting(requests: list[TrackedRequest]) -> int:
    return sum(one.stream.metrics.scheduled_ns is None and not one.finished for one in requests)
