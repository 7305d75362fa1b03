"""Turning points of a sweep: the knee of a rate, the bend of a setting's latency, and contradicting rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from roseplay.extras.lab.points import LIMITED, Points, broken, compare, spread
from roseplay.extras.lab.types import FigureName, Limits

LEAST_BEND = 0.2  # how far below the straight line a bend must lie, as a share of the latency's range


class Fall(NamedTuple):
    """A figure that is clearly lower at a higher rate: indices of both rates, and the figures' ratio, above 1."""

    low: int
    high: int
    figure: FigureName
    ratio: float


def rate_knee(kept: Sequence[bool]) -> int | None:
    """Returns the index of the largest rate up to which every rate keeps the limits.

    ``None`` if there is none within the range: the lowest rate exceeds one, or none of them does.

    Args:
        kept: whether each rate keeps the limits, in increasing order.
    """
    return kept.index(False) - 1 if kept[0] and not all(kept) else None


def falls(points: Points) -> list[Fall]:
    """Returns where a lower rate is worse than a higher one by ``traffic.difference``, which load cannot explain."""
    fallen = []
    for figure in LIMITED:
        for low, high in combinations(range(len(points)), 2):
            difference = compare(points[low], points[high], figure)
            if difference.verdict == "better":
                fallen.append(Fall(low, high, figure, 1 / difference.ratio if difference.ratio else math.inf))
    return fallen


def overtaken(kept: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Returns the indices of rates that exceed a limit although a higher one keeps both, and of those higher ones."""
    first = kept.index(False) if False in kept else len(kept)
    higher = [place for place in range(first, len(kept)) if kept[place]]
    lower = [place for place in range(first, higher[-1] if higher else first) if not kept[place]]
    return lower, higher


def contradicting(points: Points, limits: Limits) -> set[int]:
    """Returns the indices of contradicting rates, by a falling figure or by which of them keep the limits."""
    lower, higher = overtaken([not broken(point, limits) for point in points])
    return {*lower, *higher, *(place for fall in falls(points) for place in (fall.low, fall.high))}


def bend(points: Points, latency: FigureName) -> int | None:
    """Returns the index of the point after which latency rises most steeply, if there is one.

    The definition is that of Satopää, Albrecht, Irwin and Raghavan, "Finding a 'Kneedle' in a Haystack" (2011), for a
    rising convex curve: the point farthest below the straight line, with latency and the values' logarithms scaled to
    0 to 1 (the values are spaced by equal factors). Noise has such a point too. So it counts only if it lies
    ``LEAST_BEND`` below the line and, by ``traffic.difference``, the last point's latency is clearly worse than its
    own while no earlier one's is.

    Args:
        latency: name of the figure, of which the medians over the repeats are used.
    """
    medians = [(place, point["value"], spread(point, latency)["median"]) for place, point in enumerate(points)]
    known = [(place, value, median) for place, value, median in medians if value and median is not None]
    if len(known) < 3:
        return None
    places = [place for place, _, _ in known]
    x, y = [math.log(value) for _, value, _ in known], [median for _, _, median in known]
    height = max(y) - min(y)
    if not height or y[-1] <= y[0]:
        return None
    below = [(a - x[0]) / (x[-1] - x[0]) - (b - min(y)) / height for a, b in zip(x, y, strict=True)]
    best = max(range(len(below)), key=below.__getitem__)
    worse = [compare(points[places[best]], points[place], latency).verdict == "worse" for place in places]
    return places[best] if below[best] >= LEAST_BEND and worse[-1] and not any(worse[:best]) else None
