"""A comparison: two arms under the same traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from roseplay.lab import spec
from roseplay.lab.experiment import FIELDS, Experiment, Kind, Point, in_turn, parse_common
from roseplay.lab.own_traffic import checked_object
from roseplay.lab.spec import ARMS, MAX_REPEATS
from roseplay.lab.spread import is_small
from roseplay.lab.summary import watched_values
from roseplay.traffic.pace import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Experiment):
    """A checked comparison."""

    kind: ClassVar[Kind] = "compare"

    @property
    def most_repeats(self) -> int:
        """The largest number of repeats."""
        if self.max_spread_pct is None:
            return self.repeats
        fit = spec.MAX_OUTPUT_TOKENS // (len(ARMS) * self.answer_tokens)
        return max(self.repeats, min(MAX_REPEATS, fit))

    def points(self) -> list[Point]:
        return [
            Point(label=name, title=f"arm {name}", arm=name, knobs=arm.knobs, load=self)
            for name, arm in self.arms.items()
        ]

    def again(self, points: Sequence[Point]) -> Sequence[Point]:
        """Returns both arms while the spread is larger than requested."""
        most, runs = self.max_spread_pct, [run for point in points for run in point.runs]
        if most is None or len(points[0].runs) >= self.most_repeats:
            return []
        watched = watched_values(runs, self.scenario.watch, self.limits)
        return [] if all(is_small(values, most) for values in watched.values()) else points

    def record(self, run: dict[str, Any]) -> dict[str, Any]:
        return run

    def result(self, points: Sequence[Point]) -> dict[str, Any] | None:
        """Returns the repeats that both arms have completed."""
        repeats = min(len(point.runs) for point in points)
        runs = [point.runs[number] for number in range(repeats) for point in in_turn(points, number)]
        order = [run["arm"] for run in runs]
        return {"look": list(self.scenario.look), "repeats": repeats, "order": order, "runs": runs} if runs else None


def parse_comparison(body: Mapping[str, Any], speed: Speed | None = None) -> Comparison:
    """Parse a comparison from a page or a program, with the fields of ``experiment.parse_common``.

    Raises:
        ValueError: the experiment is invalid; the message is one sentence for the sender.
    """
    body = checked_object(body, "an experiment", (*FIELDS, "b"))
    comparison = Comparison(**parse_common(body, ARMS, 1, speed))
    tokens, most = comparison.answer_tokens * comparison.repeats * len(ARMS), spec.MAX_OUTPUT_TOKENS
    if tokens > most:
        raise ValueError(f"this would generate {tokens:,} tokens; at most {most:,} are kept: send less")
    return comparison
