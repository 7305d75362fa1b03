"""How far the repeats of a figure lie apart, and whether more of them are wanted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from roseplay.formats.numbers import number_text
from roseplay.traffic.run_figures import FIGURES

LEAST_REPEATS = 3  # fewer say nothing of a spread
MOST_PCT = 1000.0  # stands for any, also of a median of 0
_DOUBT = 0.05

Values = Sequence[float | None]


def spread_pct(values: Values) -> float | None:
    """Returns the spread of repeats as percent of their median; ``None`` of no values.

    It is the range in which the median of endless repeats lies with 95 % confidence, by the sign test: of 3 to 8 repeats
    the whole range, of 9 the range without the lowest and the highest, of 20 without five at either end; of fewer than 6
    it is less certain. The whole range would only grow with more repeats, this one shrinks.
    """
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    out = _left_out(len(known))
    width, median = known[-1 - out] - known[out], statistics.median(known)
    return min(MOST_PCT, round(100 * width / median, 2)) if median else MOST_PCT * bool(width)


def is_small(values: Values, most_pct: float) -> bool:
    """Whether the spread of enough repeats is at most this; also where nothing could be measured."""
    found = spread_pct(values)
    return len(values) >= LEAST_REPEATS and (found is None or found <= most_pct)


def _left_out(count: int) -> int:
    """Returns how many values at either end of ``count`` the median is beyond with less than ``_DOUBT``."""
    out, beyond = 0, 2 * (1 + count)  # ways, of 2 ** count, in which at most one value is on one side of it
    while beyond <= _DOUBT * 2**count:
        out += 1
        beyond += 2 * math.comb(count, out + 1)
    return out


def still_text(name: str, pct: float, repeats: int) -> str:
    """Returns the sentence about a spread that has not become as small as asked for."""
    title = FIGURES[name].title
    if repeats < LEAST_REPEATS:
        return f"The spread of {title} is not known: that needs {LEAST_REPEATS} repeats."
    return f"The spread of {title} was still {number_text(pct)} % after {repeats} repeats."
