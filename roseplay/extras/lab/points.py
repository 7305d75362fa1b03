"""The measured values of a sweep or a search, as a result has them: their figures, and how they compare."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from roseplay.extras.lab.document import ArmSettings, FindResult, Result, SweepResult
from roseplay.extras.lab.types import ARMS, ArmName, FigureName, Limits, MeasuredPoint, PointRow, Spread, Value, Varied
from roseplay.traffic.difference import Difference, difference
from roseplay.traffic.run_figures import FIGURES

RATE: Varied = "rate_per_s"
PROMPT: Varied = "prompt_tokens"
TRAFFIC: Mapping[str, str] = {RATE: "requests/s", PROMPT: "prompt tokens"}  # varied by other traffic -> their units
KNOBS: tuple[Varied, ...] = ("prefill_max_tokens", "max_batch_size")
# The figures of a value with a limit -> its name.
LIMITED: Mapping[FigureName, Literal["ttft_ms", "itl_ms"]] = {"ttft_p95_ms": "ttft_ms", "itl_p99_ms": "itl_ms"}

LEAST_REPEATS = 3  # fewer say nothing about a spread
MOST_PCT = 1000.0  # upper limit of a spread, also used for a median of 0
_DOUBT = 0.05

Points = Sequence[MeasuredPoint]


def arms_of(document: Result) -> dict[ArmName, ArmSettings]:
    return {arm: document["arms"][arm] for arm in ARMS if arm in document["arms"]}


def arm_points(document: SweepResult | FindResult) -> dict[ArmName, Points]:
    points: dict[ArmName, Points] = {"A": document["points"]}
    return points | {"B": document["b_points"]} if document["kind"] == "sweep" and "b_points" in document else points


def values_of(point: MeasuredPoint, figure: FigureName) -> list[float | None]:
    """Returns a figure of a point in each repeat."""
    return [run[figure] for run in point["runs"]]


def is_exact(runs: Sequence[Mapping[str, object]]) -> bool:
    """Whether these runs, of one arm or value, were simulated, so that a repeat would give the same figures."""
    return all("saturated" in run for run in runs)


def compare(a: MeasuredPoint, b: MeasuredPoint, figure: FigureName) -> Difference:
    """Returns how a figure of point ``b`` differs from that of ``a``."""
    exact = is_exact(a["runs"]) and is_exact(b["runs"])
    return difference(values_of(a, figure), values_of(b, figure), better=FIGURES[figure].better, exact=exact)


def spread(point: MeasuredPoint, figure: FigureName) -> Spread:
    """Returns median and range of a figure over the repeats."""
    values = [value for value in values_of(point, figure) if value is not None]
    if not values:
        return {"median": None, "range": [None, None]}
    return {"median": round(statistics.median(values), 4), "range": [min(values), max(values)]}


def misses(point: MeasuredPoint, limits: Limits) -> dict[FigureName, float]:
    """Returns the figures whose medians exceed their limits, and by what share of the limit."""
    over = {}
    for name, limit in LIMITED.items():
        median = spread(point, name)["median"]
        if median is not None and median > limits[limit]:
            over[name] = median / limits[limit] - 1
    return over


def worst_miss(point: MeasuredPoint, limits: Limits) -> tuple[FigureName, float]:
    """Returns the figure that exceeds its limit by most, and by how many percent of it; one at least must exceed it."""
    excess = misses(point, limits)
    name = max(excess, key=excess.__getitem__)
    return name, round(100 * excess[name], 1)


def broken(point: MeasuredPoint, limits: Limits) -> list[FigureName]:
    """Returns the figures whose medians exceed their limits; an unknown TTFT counts as exceeding."""
    names = list(misses(point, limits))
    return ["ttft_p95_ms", *names] if spread(point, "ttft_p95_ms")["median"] is None else names


def saturated_values(points: Points) -> list[Value]:
    """Returns the values whose simulated runs were saturated."""
    return [point["value"] for point in points if any(run.get("saturated") for run in point["runs"])]


def point_rows(document: SweepResult | FindResult) -> list[PointRow]:
    """Returns the rows of a summary's table; if there are two arms, both at each value, each with its ``arm``."""
    summary = document["summary"]
    if "b" not in summary:
        return list(summary["points"])
    parts = zip(ARMS, (summary, summary["b"]), strict=True)
    rows: list[PointRow] = [{**row, "arm": arm} for arm, part in parts for row in part["points"]]
    return sorted(rows, key=lambda row: row["value"] or 0)  # keeps A before B


def spread_pct(values: Sequence[float | None]) -> float | None:
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


def is_small(values: Sequence[float | None], most_pct: float) -> bool:
    """Whether there are enough repeats and their spread is at most ``most_pct``, or nothing could be measured."""
    pct = spread_pct(values)
    return len(values) >= LEAST_REPEATS and (pct is None or pct <= most_pct)


def _left_out(count: int) -> int:
    """Returns how many of ``count`` values can be dropped at either end while the doubt stays within ``_DOUBT``."""
    out, beyond = 0, 2 * (1 + count)  # of 2 ** count outcomes, those with at most one value on one side of the median
    while beyond <= _DOUBT * 2**count:
        out += 1
        beyond += 2 * math.comb(count, out + 1)
    return out
