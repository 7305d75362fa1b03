"""Where A and B cross in a sweep of both: the values between which the better arm changes, figure by figure.

Which arm is better at a value is the verdict of ``traffic.difference`` on its repeats. A crossing lies between two values
with opposite clear verdicts; a value at which the difference is within the spread belongs to neither side.
"""

from __future__ import annotations

from itertools import groupby, pairwise

from roseplay.extras.lab.document import Varied
from roseplay.extras.lab.findings.finding import Finding
from roseplay.extras.lab.points import PointResults, compare, is_exact
from roseplay.traffic.difference import Verdict

CROSSED = ("output_tokens_per_s", "e2e_p99_ms", "ttft_p95_ms", "itl_p99_ms")


class Crossing(Finding):
    """A figure in A and in B at each value that both have."""

    setting: Varied
    figure: str
    values: list[float]  # in increasing order
    verdicts: list[Verdict]  # on B at each value
    ratios: list[float | None]
    between: list[list[float]]  # the pairs of values between which A and B cross
    repeats: int
    exact: bool  # whether repeats would give the same figures

    @property
    def sides(self) -> list[tuple[Verdict, list[int]]]:
        """Returns the successive clear verdicts on B, each with the indices of its values."""
        return _sides(self.verdicts)


def crossing(setting: Varied, figure: str, a_points: PointResults, b_points: PointResults) -> Crossing:
    """Returns where a figure of A and of B crosses."""
    both = list(zip(a_points, b_points, strict=False))  # a sweep that was stopped has fewer values of B
    differences = [compare(a, b, figure) for a, b in both]
    values, verdicts = [a["value"] for a, _ in both], [difference.verdict for difference in differences]
    between = [[values[low[-1]], values[high[0]]] for (_, low), (_, high) in pairwise(_sides(verdicts))]
    exact = all(is_exact(point["runs"]) for points in both for point in points)
    repeats = max((difference.repeats for difference in differences), default=0)
    return Crossing(
        setting, figure, values, verdicts, [difference.ratio for difference in differences], between, repeats, exact
    )


def _sides(verdicts: list[Verdict]) -> list[tuple[Verdict, list[int]]]:
    clear = [place for place, verdict in enumerate(verdicts) if verdict in ("better", "worse")]
    return [(verdict, list(places)) for verdict, places in groupby(clear, verdicts.__getitem__)]
