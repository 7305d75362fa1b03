"""A search for the largest prefill budget, or the largest batch, that keeps two limits under the same traffic."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from roseplay.extras.lab.document import FindResult, Header
from roseplay.extras.lab.experiment import Experiment, Point
from roseplay.extras.lab.findings.search import MORE_RUNS, Search, is_sure
from roseplay.extras.lab.types import Kind, MeasuredPoint
from roseplay.formats.numbers import percent_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Find(Experiment):
    """A checked search: a sweep that chooses its next value. It begins with the least restrictive one."""

    kind: ClassVar[Kind] = "find"
    varied: Literal["prefill_max_tokens", "max_batch_size"]
    # The values to choose from, in increasing order; the last prefill budget is ``None``, no limit.
    grid: Sequence[int | None]

    @property
    def rounds(self) -> int:
        """0: the next measurement always depends on the previous ones."""
        return 0

    def points(self) -> list[Point]:
        """Returns all values and, if the error of a simulation is bounded, all with other durations."""
        points = [self.point_at(self.varied, value, self) for value in self.grid]
        error = self.error or 0.0
        for case, durations in self._cases.items() if error else ():
            for point in points[: len(self.grid)]:
                label = f"{point.label}, {percent_text(100 * error)} {case}"
                points.append(dataclasses.replace(point, label=label, durations=durations, runs=[]))
        return points

    @property
    def _cases(self) -> Mapping[Literal["shorter", "longer"], float]:
        """The factors of durations under which the values that were tried are simulated again, by name."""
        return {} if self.error is None else {"shorter": 1 - self.error, "longer": 1 + self.error}

    def again(self, points: Sequence[Point]) -> Sequence[Point]:
        """Returns the points to measure next: the search's next value, finally the other cases of those tried."""
        tries, following = self._walk(points)
        if following is not None:
            return [following]
        tried = {point["value"] for point in tries}
        return [point for point in points if point.durations != 1 and point.value in tried and not point.runs]

    def result(self, header: Header, points: Sequence[Point]) -> FindResult | None:
        """Returns the complete tries, once there is one."""
        tries, _ = self._walk(points)
        own: FindResult = {**header, "kind": "find", "setting": self.varied, "grid": [*self.grid], "points": tries}
        return own if tries else None

    def _walk(self, points: Sequence[Point]) -> tuple[list[MeasuredPoint], Point | None]:
        """Returns the complete tries, and the point to measure next, if there is one."""
        values, tries = [point for point in points if point.durations == 1], list[MeasuredPoint]()
        search = Search(self.grid, self.limits)
        while (place := search.next) is not None and self._is_complete(values[place]):
            runs = {point.durations: point.runs for point in points if point.value == values[place].value}
            tries.append(values[place].document())
            for name, factor in self._cases.items():
                if runs[factor]:
                    tries[-1][name] = runs[factor][0]
            search.record(tries[-1])
        return tries, None if place is None else values[place]

    def _is_complete(self, point: Point) -> bool:
        """Whether a value has its repeats, and as many more as a sure verdict needs."""
        runs = len(point.runs)
        if runs < self.repeats or runs >= MORE_RUNS * self.repeats:
            return runs >= self.repeats
        return is_sure(point.document(), self.limits, self.repeats)


def grid_between(low: int, high: int) -> tuple[int, ...]:
    """Returns low, high, and between them the powers of two and the values halfway between those, each once."""
    steps = {base << power for power in range(21) for base in (2, 3)} | {1}
    return tuple(sorted({low, high, *(step for step in steps if low < step < high)} if low < high else {low}))
