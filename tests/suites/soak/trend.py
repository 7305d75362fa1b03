"""Whether a value that was sampled during a run stays flat."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

HOUR_S = 3600.0
MIN_MB, MIN_SHARE = 30.0, 0.03  # growth that is tolerated, whichever is more
_WINDOWS = 24
_EXTRAPOLATE_FROM_S = 1200.0  # shorter measurements are not extrapolated to an hour
_Z = 2.0  # standard errors that noise may explain

Points = Sequence[tuple[float, float]]  # (seconds, value), sorted by time


def windows(points: Points, count: int = _WINDOWS) -> list[tuple[float, float]]:
    """Returns the median time and the lowest value of each of ``count`` equal spans of time.

    The lowest, because memory held briefly (a request, an export, pages not returned yet) is not growth.
    """
    if not points:
        return []
    begin, span = points[0][0], max(points[-1][0] - points[0][0], 1e-9) / count
    found: dict[int, list[tuple[float, float]]] = {}
    for time_s, value in points:
        found.setdefault(min(count - 1, int((time_s - begin) / span)), []).append((time_s, value))
    return [
        (statistics.median(t for t, _ in inside), min(value for _, value in inside))
        for _, inside in sorted(found.items())
    ]


def slope(points: Points) -> tuple[float, float]:
    """Returns the least-squares slope per second and its standard error; for fewer than three points (0, inf)."""
    if len(points) < 3:
        return 0.0, math.inf
    line, covariance = np.polyfit(*zip(*points, strict=True), 1, cov=True)
    return float(line[0]), math.sqrt(covariance[0, 0])


@dataclass(frozen=True, slots=True)
class MemoryTrend:
    """How memory developed after the warm-up, in MB."""

    first: float
    last: float
    highest: float
    per_hour: float  # slope of a straight line through the windows, and its standard error
    error: float
    # How much the line rises beyond two standard errors, over an hour or, if less than 20 minutes were measured, over
    # the time measured.
    growth: float
    limit: float  # growth that is tolerated

    @property
    def flat(self) -> bool:
        return self.growth <= self.limit

    @classmethod
    def of(cls, points: Points) -> MemoryTrend:
        """The trend of samples after the warm-up; without any, a flat one of zero."""
        low = windows(points)
        if not low:
            return cls(*[0.0] * 7)
        gradient, error = slope(low)
        measured = low[-1][0] - low[0][0]
        over = measured if measured < _EXTRAPOLATE_FROM_S else HOUR_S
        certain = max(0.0, gradient - _Z * error) if math.isfinite(error) else 0.0
        limit = max(MIN_MB, MIN_SHARE * statistics.median(v for _, v in low))
        highest = max(v for _, v in points)
        return cls(low[0][1], low[-1][1], highest, gradient * HOUR_S, error * HOUR_S, certain * over, limit)


@dataclass(frozen=True, slots=True)
class CountTrend:
    """How a number of handles, threads or files developed after the warm-up.

    Compares the highest value in the first quarter with the lowest in the last. A repeated leak makes the second one
    larger, whatever else comes and goes.
    """

    first_highest: float
    last_lowest: float
    slack: float

    @property
    def flat(self) -> bool:
        return self.last_lowest <= self.first_highest + self.slack

    @classmethod
    def of(cls, points: Points, slack: float) -> CountTrend:
        if not points:
            return cls(0, 0, slack)
        quarter = max(1, len(points) // 4)
        return cls(max(v for _, v in points[:quarter]), min(v for _, v in points[-quarter:]), slack)
