"""Where A and B cross in a sweep of both: the values between which the better arm changes, figure by figure.

Which arm is better at a value is the verdict of ``traffic.difference`` on its repeats. A crossing lies between two values
with opposite clear verdicts; a value at which the difference is within the spread belongs to neither side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from roseplay.formats.numbers import number_text, ratio_text
from roseplay.formats.text import listed
from roseplay.lab.experiment import Varied
from roseplay.lab.points import TRAFFIC, compare, value_text
from roseplay.lab.simulated_text import is_exact
from roseplay.traffic.difference import Difference, spread_text
from roseplay.traffic.run_figures import FIGURES

CROSSED = ("output_tokens_per_s", "e2e_p99_ms", "ttft_p95_ms", "itl_p99_ms")
_MOST_LISTED = 3

Points = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Crossing:
    """A figure in A and in B at each value that both have.

    Attributes:
        values: in increasing order.
        found: how B differs from A at each value.
        exact: whether repeats would give the same figures.
    """

    setting: Varied
    figure: str
    values: Sequence[float]
    found: Sequence[Difference]
    exact: bool

    @classmethod
    def of(cls, setting: Varied, figure: str, a_points: Points, b_points: Points) -> Crossing:
        both = list(zip(a_points, b_points, strict=False))  # a sweep that was stopped has fewer values of B
        exact = all(is_exact(point["runs"]) for points in both for point in points)
        found = [compare(a, b, figure) for a, b in both]
        return cls(setting, figure, [a["value"] for a, _ in both], found, exact)

    @property
    def sides(self) -> list[tuple[str, list[int]]]:
        """Returns the successive clear verdicts on B, each with the indices of its values."""
        clear = [place for place, found in enumerate(self.found) if found.clear]
        return [(verdict, list(places)) for verdict, places in groupby(clear, lambda place: self.found[place].verdict)]

    @property
    def between(self) -> list[list[float]]:
        """Returns the pairs of values between which A and B cross."""
        return [[self.values[low[-1]], self.values[high[0]]] for (_, low), (_, high) in pairwise(self.sides)]

    def document(self) -> dict[str, Any]:
        """Returns it for a summary: the crossings, and the verdict on B at each value."""
        return {"between": self.between, "verdicts": [found.verdict for found in self.found]}

    def sentence(self) -> str:
        """Returns the sentence that says where A and B cross, or that they do not within the range."""
        title, sides = FIGURES[self.figure].title, self.sides
        if all(found.verdict == "unknown" for found in self.found):
            return f"{title} could not be measured in both."
        if not sides:
            return f"{title}: no crossing, A and B are {self._unclear} at every value from {self._ends}."
        if len(sides) == 1:
            return f"{title}: no crossing from {self._ends}; B is {self._side(*sides[0])}{self._rest}."
        said = ", ".join(self._side(*side) for side in sides)
        pairs = " and ".join(f"between {number_text(low)} and {number_text(high)}" for low, high in self.between)
        unit = f" {TRAFFIC[self.setting]}" if self.setting in TRAFFIC else ""
        times = "" if len(sides) == 2 else f" {len(sides) - 1} times"
        return f"{title}: A and B cross{times} {pairs}{unit}; B is {said}{self._rest}."

    def _side(self, verdict: str, places: Sequence[int]) -> str:
        """Returns where B is better or worse, and by how much, as in ``worse at 64 and 128 (0.81× to 0.92×)``."""
        ratios = sorted(ratio for place in places if (ratio := self.found[place].ratio) is not None)
        ends = dict.fromkeys(map(ratio_text, (ratios[0], ratios[-1]) if ratios else ()))
        size = f" ({' to '.join(ends)})" if ends else ""
        if len(places) == len(self.values):
            return f"{verdict} at every value{size}"
        values = [number_text(self.values[place]) for place in places]
        if len(values) > _MOST_LISTED:
            whole = places[-1] - places[0] + 1 == len(places)
            where = f"{'' if whole else f'{len(places)} values '}from {values[0]} to {values[-1]}"
            return f"{verdict} {where if whole else f'at {where}'}{size}"
        return f"{verdict} at {listed(values)}{size}"

    @property
    def _rest(self) -> str:
        """Returns words on the values without a clear verdict, if there are any."""
        return f"; elsewhere, {self._unclear}" if any(not found.clear for found in self.found) else ""

    @property
    def _unclear(self) -> str:
        return "about the same" if self.exact else f"within {spread_text(max(found.repeats for found in self.found))}"

    @property
    def _ends(self) -> str:
        return f"{number_text(self.values[0])} to {value_text(self.setting, self.values[-1])}"
