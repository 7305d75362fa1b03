"""A sweep: one setting at several values, measured in rounds over all values, on the engine of A or on those of A and B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from roseplay.lab.document import MAX_REPEATS, Kind, Value, Varied
from roseplay.lab.experiment import Experiment, Point
from roseplay.lab.findings.knee import contradicting
from roseplay.lab.findings.sweep import latency_of
from roseplay.lab.load import Load
from roseplay.lab.points import PROMPT, RATE, is_small, values_of

MOST_RUNS = 2  # a rate that contradicts another has at most this many times the repeats as runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(Experiment):
    """A checked sweep.

    It measures in rounds over all values, alternately rising and falling, each value in A and, if there is one, in B, so
    that a slow minute of the machine affects all of them. Afterwards it measures again the values whose spread is larger
    than requested and, up to ``MOST_RUNS`` times the repeats, rates that contradict each other (see
    ``knee.contradicting``).

    Attributes:
        values: in increasing order.
        seconds: how long requests arrive at each value; ``None`` means until all are sent.
    """

    kind: ClassVar[Kind] = "sweep"
    varied: Varied
    values: Sequence[float]
    seconds: float | None

    def loads(self) -> dict[Value, Load]:
        """Returns the traffic for each value; raises ``ValueError`` if the traffic cannot have such a rate."""
        if self.varied == RATE:
            return {value: self.at_rate(value, self.seconds) for value in self.values}
        load: Load = self
        if self.seconds is not None:
            if self.scenario.rate_per_s is None:
                raise ValueError(f"{self.scenario.title} sends all requests at once: leave out seconds")
            load = self.at_rate(self.scenario.rate_per_s, self.seconds)
        if self.varied == PROMPT:
            return {value: load.with_prompts_of(int(value)) for value in self.values}
        return dict.fromkeys(self.values, load)

    def points(self) -> list[Point]:
        loads = self.loads()
        return [self.point_at(self.varied, value, loads[value], arm) for value in loads for arm in self.arms]

    def again(self, points: Sequence[Point]) -> Sequence[Point]:
        if self.exact:
            return []
        return [point for arm in self.arms for point in self._unclear([one for one in points if one.arm == arm])]

    def _unclear(self, points: Sequence[Point]) -> list[Point]:
        """Returns the points of an arm to measure again."""
        measured, latency = [point.document() for point in points], latency_of(self.varied)
        places = contradicting(measured, self.limits) if self.varied == RATE else set()

        def is_unclear(place: int) -> bool:
            runs = len(points[place].runs)
            most = self.max_spread_pct
            wide = most is not None and not is_small(values_of(measured[place], latency), most)
            return runs < MAX_REPEATS and (wide or (place in places and runs < MOST_RUNS * self.repeats))

        return [point for place, point in enumerate(points) if is_unclear(place)]

    def result(self, points: Sequence[Point]) -> dict[str, Any] | None:
        """Returns the values that have runs, once there is one for each arm."""
        measured = {arm: [point.document() for point in points if point.arm == arm and point.runs] for arm in self.arms}
        if not all(measured.values()):
            return None
        seconds = {} if self.seconds is None else {"seconds": self.seconds}
        of_b = {"b_points": measured["B"]} if "B" in measured else {}
        return {**seconds, "asked": list(self.values), "points": measured["A"], **of_b}


def spaced(first: float, last: float, count: int, *, whole: bool) -> list[float]:
    """Returns values from first to last: evenly spaced or, if ``whole``, distinct integers spaced by equal factors."""
    if whole:
        return sorted({round(first * (last / first) ** (step / (count - 1))) for step in range(count)})
    return [round(first + (last - first) * step / (count - 1), 4) for step in range(count)]
