"""A sweep: one setting at several values, measured in rounds over all values, on the engine of A or on those of A and B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from roseplay.extras.lab.document import MAX_REPEATS, Header, SweepResult
from roseplay.extras.lab.experiment import Experiment, Point
from roseplay.extras.lab.findings.knee import contradicting
from roseplay.extras.lab.findings.sweep import latency_of
from roseplay.extras.lab.load import Load
from roseplay.extras.lab.points import PROMPT, RATE, broken, is_small, values_of
from roseplay.extras.lab.types import Kind, Value, Varied
from roseplay.traffic.scenario import MAX_REQUESTS

MOST_RUNS = 2  # a rate that contradicts another has at most this many times the repeats as runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(Experiment):
    """A checked sweep.

    It measures in rounds over all values, alternately rising and falling, each value in A and, if there is one, in B, so
    that a slow minute of the machine affects all of them. If it ``doubles`` the rate, the first round ends at the value
    at which no arm keeps its limits. Afterwards it measures again the values whose spread is larger
    than requested and, up to ``MOST_RUNS`` times the repeats, rates that contradict each other (see
    ``knee.contradicting``).
    """

    kind: ClassVar[Kind] = "sweep"
    varied: Varied
    values: Sequence[float]  # in increasing order
    seconds: float | None  # how long requests arrive at each value; ``None`` means until all are sent
    doubles: bool = False  # whether the values that follow one at which no arm keeps its limits are left out

    @property
    def rounds(self) -> int:
        """0 if each measurement may be the last."""
        return 0 if self.doubles else self.repeats

    def loads(self) -> dict[Value, Load]:
        """Returns the traffic for each value; raises ``ValueError`` if the traffic cannot have such a rate."""
        if self.varied == RATE:
            return {value: self.at_rate(value, self._seconds_at(value)) for value in self.values}
        load: Load = self
        if self.seconds is not None:
            if self.scenario.rate_per_s is None:
                raise ValueError(f"{self.scenario.title} sends all requests at once: leave out seconds")
            load = self.at_rate(self.scenario.rate_per_s, self.seconds)
        if self.varied == PROMPT:
            return {value: load.with_prompts_of(int(value)) for value in self.values}
        return dict.fromkeys(self.values, load)

    def _seconds_at(self, rate: float) -> float | None:
        """Returns how long requests arrive at a rate: if it doubles, no longer than until there are as many as allowed."""
        return min(self.seconds, MAX_REQUESTS / rate) if self.seconds and self.doubles else self.seconds

    def points(self) -> list[Point]:
        loads = self.loads()
        return [self.point_at(self.varied, value, loads[value], arm) for value in loads for arm in self.arms]

    def again(self, points: Sequence[Point]) -> Sequence[Point]:
        if self.doubles and (doubled := self._doubled(points)):
            return doubled
        if self.exact:
            return []
        started = [point for point in points if point.runs]
        return [point for arm in self.arms for point in self._unclear([one for one in started if one.arm == arm])]

    def _doubled(self, points: Sequence[Point]) -> list[Point]:
        """Returns the next rate's points if an arm keeps its limits at the last; at the end, those that lack repeats."""
        for value in self.values:
            at = [point for point in points if point.value == value]
            if not all(point.runs for point in at):
                return at
            if all(broken(point.document(), self.limits) for point in at):
                break
        return [point for point in points if 0 < len(point.runs) < self.repeats]

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

    def result(self, header: Header, points: Sequence[Point]) -> SweepResult | None:
        """Returns the values that have runs, once there is one for each arm."""
        measured = {arm: [point.document() for point in points if point.arm == arm and point.runs] for arm in self.arms}
        if not all(measured.values()):
            return None
        asked = list(self.values[: len(measured["A"])] if self.doubles else self.values)
        own: SweepResult = {**header, "kind": "sweep", "setting": self.varied, "asked": asked, "points": measured["A"]}
        if self.seconds is not None:
            own["seconds"] = self.seconds
        if self.doubles:
            own["doubles"] = True
        if "B" in measured:
            own["b_points"] = measured["B"]
        return own


def spaced(first: float, last: float, count: int, *, whole: bool) -> list[float]:
    """Returns values from first to last: evenly spaced or, if ``whole``, distinct integers spaced by equal factors."""
    if whole:
        return sorted({round(first * (last / first) ** (step / (count - 1))) for step in range(count)})
    return [round(first + (last - first) * step / (count - 1), 4) for step in range(count)]


def doubled(first: float, most: float) -> list[float]:
    """Returns values from first to at most ``most``, each twice the one before."""
    values = [first]
    while 2 * values[-1] <= most:
        values.append(2 * values[-1])
    return values
