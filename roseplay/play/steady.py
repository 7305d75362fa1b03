"""Steady traffic: until stopped, requests arrive at a rate, whether or not earlier ones have been answered.

This is an open loop: when the engine falls behind, its queue grows, as in a public service.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.formats.text import shown
from roseplay.play.bursts import LABELS, kind_of
from roseplay.play.open_loop import OpenLoop, Send
from roseplay.traffic.arrivals import Spacing, endless

LEAST_RATE, MOST_RATE = 0.1, 50.0  # requests per second
MOST_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class SteadyPlan:
    """The requests to send. Raises ``ValueError`` for a value out of range."""

    rate: float  # requests per second, on average
    spacing: Spacing  # ``poisson`` draws random gaps between requests, ``even`` keeps them equal
    kind: str  # of the prompts, as for a burst
    max_new_tokens: int  # of each answer
    seed: int  # the same seed gives the same prompts, and with ``poisson`` the same gaps

    def __post_init__(self) -> None:
        check_rate(self.rate)
        object.__setattr__(self, "kind", kind_of(self.kind))


def check_rate(rate: float) -> float:
    """Returns a rate; raises ``ValueError`` if steady traffic cannot have it."""
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise ValueError(f"the rate is {shown(rate)}: use {LEAST_RATE:g} to {MOST_RATE:g} requests a second")
    return rate


class SteadyTraffic(OpenLoop):
    """The steady traffic of one tab.

    Args:
        is_watched: returns whether the tab is still open; once it is not, the traffic ends.
        clock: the engine's.
    """

    def __init__(
        self, plan: SteadyPlan, send: Send, is_watched: Callable[[], bool], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__("roseplay-steady", is_watched, clock)
        self._order = plan, send  # replaced together
        self._followed: tuple[SteadyPlan, Send] | None = None  # the order under which the next request is due
        self._arrivals: Iterator[float] = iter(())
        self._next = 0, 0.0  # the request that is due next, and when

    @property
    def plan(self) -> SteadyPlan:
        return self._order[0]

    def change(self, plan: SteadyPlan, send: Send) -> None:
        """Continue with another plan: request numbers go on, and the next one comes after a gap at the new rate."""
        self._order = plan, send

    def figures(self) -> dict[str, object]:
        """Returns the loop's figures with the plan's."""
        plan = self.plan
        return {**super().figures(), **dataclasses.asdict(plan), "label": LABELS[plan.kind]}

    def _due(self) -> float:
        if self._followed is not self._order:
            self._followed = self._order
            self._arrivals = self._from_now(self._followed[0])
            self._next = self._sent, next(self._arrivals)
        elif self._next[0] < self._sent:
            self._next = self._sent, next(self._arrivals)
        return self._next[1]

    def _send(self) -> Send:
        assert self._followed is not None
        return self._followed[1]

    def _from_now(self, plan: SteadyPlan) -> Iterator[float]:
        """Yields when the next requests arrive, in seconds. After a change, the seed's gaps go on from now."""
        arrivals = islice(endless(plan.spacing, plan.rate, seed=plan.seed), max(0, self._sent - 1), None)
        begun = self._seconds() - next(arrivals) if self._sent else 0.0
        return (begun + at_s for at_s in arrivals)

    def _limit(self) -> str | None:
        reason = super()._limit()
        if reason is None and self._seconds() > MOST_S:
            return f"it ran for {MOST_S / 60:g} minutes, the limit"
        return reason
