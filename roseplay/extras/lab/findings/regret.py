"""The regret of a search's answer: how much worse it may be than the best of the values that were tried.

A large prefill budget is wanted for a low TTFT p95, a large batch for throughput. The regret is the share of this figure
by which another value may be better that keeps both limits as well:

- *Measured*: another value may keep a limit if any of its runs does. Its best run is compared with the answer's worst.
- *Simulated*: all values tried are simulated again with durations shorter and longer by the error of the simulation. In
  each of these cases, the answer is compared with the best of the values that keep both limits there.

There is no regret of a single measured run, whose spread is unknown, nor of a simulation whose error is not bounded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from roseplay.extras.lab.document import Simulated
from roseplay.extras.lab.findings.finding import Finding
from roseplay.extras.lab.points import LIMITED, Points, misses, spread, worst_miss
from roseplay.extras.lab.types import FigureName, Limits, MeasuredPoint, Value, Varied
from roseplay.traffic.run_figures import FIGURES

OBJECTIVE: Mapping[str, FigureName] = {"prefill_max_tokens": "ttft_p95_ms", "max_batch_size": "output_tokens_per_s"}

Case = Literal["runs", "shorter", "longer"]  # of a simulated value: as it is, and with other durations
Unknown = Literal["one_run", "saturated", "unbounded", "not_simulated"]


class Regret(Finding):
    setting: Varied
    figure: FigureName  # what the answer is for, see ``OBJECTIVE``
    pct: float | None  # at most, in percent of that figure
    unknown: Unknown | None = None  # why ``pct`` is not known
    against: Value = None  # the other value that may be better, if ``pct`` is above 0
    best: float | None = None  # the figure of that value,
    worst: float | None = None  # and of the answer
    case: Case = "runs"  # in which that is so
    error_pct: float | None = None  # of the simulation; ``None`` if measured
    label: str | None = None  # the evidence for the simulation in a few words


class Doubt(Finding):
    """What else the error of a simulation may change: in a case, the answer exceeds a limit."""

    setting: Varied
    case: Case
    error_pct: float
    figure: FigureName
    miss_pct: float
    any_keeps: bool  # whether another value tried keeps both then,
    instead: Value = None  # and the best of those


def regret(
    setting: Varied, limits: Limits, answer: MeasuredPoint, tried: Points, simulated: Simulated | None
) -> list[Finding]:
    """Returns the regret of ``answer``, one of the points ``tried``, and doubts about it; none if nothing else was tried.

    Args:
        simulated: what a result says of simulated arms; ``None`` for measured ones. Simulated
            points with repeats, which kept the cache, count as measured.
    """
    figure, others = OBJECTIVE[setting], [point for point in tried if point["value"] != answer["value"]]
    cases: Sequence[Case] = ("runs",)
    worst_case = Regret(setting, figure, 0.0)
    if simulated is not None and len(answer["runs"]) == 1:
        cases = get_args(Case)
        worst_case = dataclasses.replace(worst_case, error_pct=simulated["error_pct"], label=simulated["label"])
    if (unknown := _unknown(answer, tried, worst_case)) is not None:
        return [Regret(setting, figure, None, unknown)] if others or unknown != "one_run" else []
    doubts: list[Finding] = []
    for case in cases:
        own = _under(case, answer)
        best = _best([_under(case, point) for point in others], figure, limits)
        loss = _loss(figure, own, best)
        if best is not None and loss > (worst_case.pct or 0):
            value, worst = _end(best, figure, best=True), _end(own, figure, best=False)
            worst_case = dataclasses.replace(
                worst_case, pct=loss, against=best["value"], best=value, worst=worst, case=case
            )
        if misses(own, limits):
            instead = None if best is None else best["value"]
            error_pct = worst_case.error_pct or 0.0
            doubts.append(Doubt(setting, case, error_pct, *worst_miss(own, limits), best is not None, instead))
    return [worst_case, *doubts] if others else doubts


def _unknown(answer: MeasuredPoint, tried: Points, regret: Regret) -> Unknown | None:
    """Returns why the regret cannot be known, if so."""
    if regret.label is None:
        return "one_run" if len(answer["runs"]) < 2 else None
    if answer["runs"][0].get("saturated"):
        return "saturated"
    if regret.error_pct is None:
        return "unbounded"
    return None if all("shorter" in point and "longer" in point for point in tried) else "not_simulated"


def _under(case: Case, point: MeasuredPoint) -> MeasuredPoint:
    return point if case == "runs" else {**point, "runs": [point[case]]}


def _best(points: Points, figure: FigureName, limits: Limits) -> MeasuredPoint | None:
    """Returns the point with the best run of those that may keep both limits, as any run of theirs does."""

    def may_keep(point: MeasuredPoint) -> bool:
        lowest = {limit: spread(point, name)["range"][0] for name, limit in LIMITED.items()}
        return all(low is None or low <= limits[name] for name, low in lowest.items())

    def rank(point: MeasuredPoint) -> float:
        value = _end(point, figure, best=True)
        return float("inf") if value is None else value if FIGURES[figure].better == "lower" else -value

    return min(filter(may_keep, points), key=rank, default=None)


def _end(point: MeasuredPoint, figure: FigureName, *, best: bool) -> float | None:
    """Returns the best or the worst of a figure in a point's runs."""
    low, high = spread(point, figure)["range"]
    return low if (FIGURES[figure].better == "lower") == best else high


def _loss(figure: FigureName, answer: MeasuredPoint, other: MeasuredPoint | None) -> float:
    """Returns by how many percent the answer's worst run is worse than the other's best; 0 if it is not, or not known."""
    value, best = _end(answer, figure, best=False), None if other is None else _end(other, figure, best=True)
    if value is None or not best:
        return 0.0
    worse = value / best - 1 if FIGURES[figure].better == "lower" else 1 - value / best
    return max(0.0, round(100 * worse, 1))
