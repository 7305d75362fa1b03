"""The one rule for whether a figure differs between two settings, A and B.

Everything that compares runs uses it, so that a table, its bars and the sentences beside it cannot disagree. B is
better or worse only if the two ranges of values do not overlap and the medians differ by at least ``least_ratio``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LEAST_RATIO = 1.05
LEAST_RATIO_OF_ONE_RUN = 1.15  # the spread of a single run is unknown

Better = Literal["higher", "lower"]
Verdict = Literal["better", "worse", "within", "unknown"]
Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Difference:
    """How one figure differs between A and B."""

    # B is ``better`` or ``worse`` than A, or the difference is ``within`` the spread; ``unknown`` if one of them has no
    # value.
    verdict: Verdict
    a: float | None  # medians over the repeats; ``None`` if there are no values
    b: float | None
    a_range: Range | None  # the lowest and the highest value
    b_range: Range | None
    ratio: float | None  # b / a; ``None`` if a is 0 or one of them is unknown
    repeats: int  # number of values on the side that has fewer

    @property
    def clear(self) -> bool:
        """Whether B is better or worse."""
        return self.verdict in ("better", "worse")


def difference(
    a: Sequence[float | None], b: Sequence[float | None], *, better: Better, exact: bool = False
) -> Difference:
    """Compare a figure of two settings.

    Args:
        a, b: its value in each repeat, at least 0; ``None`` where it could not be measured. The order does not matter.
        better: which direction is better.
        exact: whether repeats would give the same values, as in a simulation: then a single one is enough.
    """
    known_a, known_b = ([value for value in values if value is not None] for values in (a, b))
    median_a, median_b = _median(known_a), _median(known_b)
    range_a, range_b = _range(known_a), _range(known_b)
    repeats = min(len(known_a), len(known_b))
    verdict: Verdict = "within"
    if median_a is None or median_b is None or range_a is None or range_b is None:
        verdict = "unknown"
    elif (range_a[1] < range_b[0] or range_b[1] < range_a[0]) and _size(median_a, median_b) >= math.log(
        LEAST_RATIO if exact else least_ratio(repeats)
    ):
        verdict = "better" if (median_b < median_a) == (better == "lower") else "worse"
    ratio = median_b / median_a if median_a and median_b is not None else None
    return Difference(verdict, median_a, median_b, range_a, range_b, ratio, repeats)


def least_ratio(repeats: int) -> float:
    """Returns the smallest ratio of the medians that counts as a difference."""
    return LEAST_RATIO if repeats > 1 else LEAST_RATIO_OF_ONE_RUN


def spread_text(repeats: int) -> str:
    """Returns the words that follow "within" for an unclear difference, such as ``the spread of 3 repeats``."""
    return f"the spread of {repeats} repeats" if repeats > 1 else "what one run each can show"


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _range(values: Sequence[float]) -> Range | None:
    return (min(values), max(values)) if values else None


def _size(a: float, b: float) -> float:
    low, high = sorted((abs(a), abs(b)))
    return 0.0 if high == 0 else math.inf if low == 0 else math.log(high / low)
