"""A search for the largest prefill budget, or the largest batch, that keeps two promises under the same traffic."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from roseplay.lab.experiment import FIELDS, Experiment, Kind, Point, Varied, parse_common
from roseplay.lab.find_summary import MORE_RUNS, PROMISES, Search, is_sure
from roseplay.lab.own_traffic import checked_object
from roseplay.lab.points import KNOBS, MAX_VALUE, figures, of_point, point_at
from roseplay.traffic.pace import Speed
from roseplay.traffic.scenario import checked_number

RANGES: Mapping[str, tuple[int, int]] = {"prefill_max_tokens": (16, 2048), "max_batch_size": (1, 64)}
_FIELDS = ("setting", "from", "to", *PROMISES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Find(Experiment):
    """A checked search: a sweep that chooses its next value. It begins with the least restrictive one.

    Attributes:
        grid: the values to choose from, in increasing order; the last prefill budget is ``None``, no limit.
        promises: upper limits for ITL p99 and TTFT p95, in ms.
    """

    kind: ClassVar[Kind] = "find"
    varied: Varied
    grid: Sequence[int | None]
    promises: Mapping[str, float]

    @property
    def rounds(self) -> int:
        """0: the next measurement always depends on the previous ones."""
        return 0

    def points(self) -> list[Point]:
        """Returns all values and, if the error of a simulation is bounded, all with other durations."""
        found = [point_at(self, self.varied, value, self) for value in self.grid]
        for durations in (factor for factor in self._cases.values() if factor != 1):
            for point in found[: len(self.grid)]:
                off = f"{100 * abs(durations - 1):g} % {'longer' if durations > 1 else 'shorter'}"
                label = f"{point.label}, {off}"
                found.append(dataclasses.replace(point, label=label, title=label, durations=durations, runs=[]))
        return found

    @property
    def _cases(self) -> Mapping[str, float]:
        """The factors of durations under which the values that were tried are simulated again, by name."""
        return {} if self.error is None else {"shorter": 1 - self.error, "longer": 1 + self.error}

    def again(self, points: Sequence[Point]) -> Sequence[Point]:
        """Returns the points to measure next: the search's next value, finally the other cases of those tried."""
        tries, following = self._walk(points)
        if following is not None:
            return [following]
        tried = {point["value"] for point in tries}
        return [point for point in points if point.durations != 1 and point.value in tried and not point.runs]

    def record(self, run: dict[str, Any]) -> dict[str, Any]:
        return figures(run, self.limits)

    def result(self, points: Sequence[Point]) -> dict[str, Any] | None:
        """Returns the complete tries, once there is one."""
        tries, _ = self._walk(points)
        return {"promises": dict(self.promises), "grid": list(self.grid), "points": tries} if tries else None

    def _walk(self, points: Sequence[Point]) -> tuple[list[dict[str, Any]], Point | None]:
        """Returns the complete tries, and the point to measure next, if there is one."""
        values, tries, search = (
            [point for point in points if point.durations == 1],
            [],
            Search(self.grid, self.promises),
        )
        while (place := search.next) is not None and self._is_complete(values[place]):
            runs = {point.durations: point.runs for point in points if point.value == values[place].value}
            cases = {name: runs[factor][0] for name, factor in self._cases.items() if runs[factor]}
            tries.append(of_point(values[place]) | cases)
            search.record(tries[-1])
        return tries, None if place is None else values[place]

    def _is_complete(self, point: Point) -> bool:
        """Whether a value has its repeats, and as many more as a sure verdict needs."""
        runs = len(point.runs)
        if runs < self.repeats or runs >= MORE_RUNS * self.repeats:
            return runs >= self.repeats
        return is_sure(of_point(point), self.promises, self.repeats)


def parse_find(body: Mapping[str, Any], speed: Speed | None = None) -> Find:
    """Parse a search from a page or a program.

    ``find`` is ``{"setting": "prefill_max_tokens", "itl_p99_ms": 20, "ttft_p95_ms": 250, "from": 16, "to": 2048}``; the
    setting may also be ``max_batch_size``. The other fields are those of ``experiment.parse_common``, without ``b`` and
    ``max_spread_pct``. A value whose repeats disagree is measured more often, see ``find_summary.is_sure``.

    Args:
        speed: of the engine, see ``spec.parse_load``.

    Raises:
        ValueError: the search is invalid; the message is one sentence for the sender.
    """
    body = checked_object(body, "a body with find", (*FIELDS, "find"))
    if body.get("max_spread_pct") is not None:
        raise ValueError("a search repeats a value until its verdict is sure: leave out max_spread_pct")
    given = checked_object(body["find"], "a search", _FIELDS)
    setting = given.get("setting")
    if setting not in KNOBS:
        raise ValueError(f"a search cannot vary {setting!r}: use {' or '.join(KNOBS)}")
    low, high = (
        int(checked_number(name, otherwise if given.get(name) is None else given[name], 1, MAX_VALUE))
        for name, otherwise in zip(("from", "to"), RANGES[setting], strict=True)
    )
    grid: Sequence[int | None] = grid_between(low, high)
    if len(grid) < 2:
        raise ValueError(f"there is nothing to choose from {low} to {high}: widen the range")
    promises = {name: checked_number(name, given.get(name), 0.01, 1e6, whole=False) for name in PROMISES}
    if setting == "prefill_max_tokens":
        grid = (*grid, None)
    return Find(**parse_common(body, ("A",), 3, speed), varied=setting, grid=grid, promises=promises)


def grid_between(low: int, high: int) -> tuple[int, ...]:
    """Returns low, high, and between them the powers of two and the values halfway between those, each once."""
    steps = {base << power for power in range(21) for base in (2, 3)} | {1}
    return tuple(sorted({low, high, *(step for step in steps if low < step < high)} if low < high else {low}))
