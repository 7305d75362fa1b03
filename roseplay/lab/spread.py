"""The spread of a figure over its repeats, and whether more repeats are needed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

LEAST_REPEATS = 3  # fewer say nothing about a spread
MOST_PCT = 1000.0  # upper limit, also used for a median of 0
_DOUBT = 0.05

Values = Sequence[float | None]


def spread_pct(values: Values) -> float | None:
    """Returns the spread of repeats in percent of their median; ``None`` if there are no values.

    It is the 95 % confidence interval of the true median by the sign test: with 3 to 8 repeats the whole range, with 9
    the range without the lowest and the highest, with 20 without five at either end; with fewer than 6 the confidence
    is lower. The whole range would only grow with more repeats; this one shrinks.
    """
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    out = _left_out(len(known))
    width, median = known[-1 - out] - known[out], statistics.median(known)
    return min(MOST_PCT, round(100 * width / median, 2)) if median else MOST_PCT * bool(width)


def is_small(values: Values, most_pct: float) -> bool:
    """Whether there are enough repeats and their spread is at most ``most_pct``, or nothing could be measured."""
    found = spread_pct(values)
    return len(values) >= LEAST_REPEATS and (found is None or found <= most_pct)


def _left_out(count: int) -> int:
    """Returns how many of ``count`` values can be dropped at either end while the doubt stays within ``_DOUBT``."""
    out, beyond = 0, 2 * (1 + count)  # of 2 ** count outcomes, those with at most one value on one side of the median
    while beyond <= _DOUBT * 2**count:
        out += 1
        beyond += 2 * math.comb(count, out + 1)
    return out
