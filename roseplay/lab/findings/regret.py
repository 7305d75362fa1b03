"""The regret of a search's answer: how much worse it may be than the best of the values that were tried.

A large prefill budget is wanted for a low TTFT p95, a large batch for throughput. The regret is the share of this figure
by which another value may be better that keeps both promises as well:

- *Measured*: another value may keep a promise if any of its runs does. Its best run is compared with the answer's worst.
- *Simulated*: all values tried are simulated again with durations shorter and longer by the error of the simulation. In
  each of these cases, the answer is compared with the best of the values that keep both promises there.

There is no regret of a single measured run, whose spread is unknown, nor of a simulation whose error is not bounded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

from roseplay.lab.document import Value, Varied
from roseplay.lab.findings.finding import Finding
from roseplay.lab.points import PointResult, PointResults, misses, spread, worst_miss
from roseplay.traffic.run_figures import FIGURES

OBJECTIVE: Mapping[str, str] = {"prefill_max_tokens": "ttft_p95_ms", "max_batch_size": "output_tokens_per_s"}

Promises = Mapping[str, float]
Case = Literal["runs", "shorter", "longer"]  # of a simulated value: as it is, and with other durations
Unknown = Literal["one_run", "saturated", "unbounded", "not_simulated"]


class Regret(Finding):
    """The regret of an answer."""

    setting: Varied
    figure: str  # what the answer is for, see ``OBJECTIVE``
    pct: float | None  # at most, in percent of that figure
    unknown: Unknown | None = None  # why ``pct`` is not known
    against: Value = None  # the other value that may be better, if ``pct`` is above 0
    best: float | None = None  # the figure of that value,
    worst: float | None = None  # and of the answer
    case: Case = "runs"  # in which that is so
    error_pct: float | None = None  # of the simulation; ``None`` if measured
    label: str | None = None  # the evidence for the simulation in a few words


class Doubt(Finding):
    """What else the error of a simulation may change: in a case, the answer misses a promise."""

    setting: Varied
    case: Case
    error_pct: float
    figure: str
    miss_pct: float
    any_keeps: bool  # whether another value tried keeps both then,
    instead: Value = None  # and the best of those


def regret(
    setting: Varied,
    promises: Promises,
    answer: PointResult,
    tried: PointResults,
    simulated: Mapping[str, Any] | None,
) -> list[Finding]:
    """Returns the regret of ``answer``, one of the points ``tried``, and doubts about it; none if nothing else was tried.

    Args:
        simulated: what a result says of simulated arms, see ``document.Simulated``; ``None`` for measured ones. Simulated
            points with repeats, which kept the cache, count as measured.
    """
    figure = OBJECTIVE[setting]
    others = [point for point in tried if point["value"] != answer["value"]]
    if simulated is None or len(answer["runs"]) > 1:
        return [_measured(setting, promises, answer, others)] if others else []
    unknown: Unknown | None = None
    if answer["runs"][0].get("saturated"):
        unknown = "saturated"
    elif simulated["error_pct"] is None:
        unknown = "unbounded"
    elif not all("shorter" in point and "longer" in point for point in tried):
        unknown = "not_simulated"
    if unknown is not None:
        return [Regret(setting, figure, None, unknown)]
    return _simulated(setting, promises, answer, others, simulated)


def _measured(setting: Varied, promises: Promises, answer: PointResult, others: PointResults) -> Regret:
    figure = OBJECTIVE[setting]
    if len(answer["runs"]) < 2:
        return Regret(setting, figure, None, "one_run")
    best = _best(others, figure, promises)
    loss = _loss(figure, answer, best)
    if best is None or not loss:
        return Regret(setting, figure, 0.0)
    return Regret(
        setting,
        figure,
        loss,
        against=best["value"],
        best=_end(best, figure, best=True),
        worst=_end(answer, figure, best=False),
    )


def _simulated(
    setting: Varied, promises: Promises, answer: PointResult, others: PointResults, simulated: Mapping[str, Any]
) -> list[Finding]:
    figure, error_pct = OBJECTIVE[setting], simulated["error_pct"]
    worst_case, doubts = Regret(setting, figure, 0.0, error_pct=error_pct, label=simulated["label"]), []
    for case in get_args(Case):
        own = _under(case, answer)
        best = _best([_under(case, point) for point in others], figure, promises)
        loss = _loss(figure, own, best)
        if best is not None and loss > (worst_case.pct or 0):
            value, worst = _end(best, figure, best=True), _end(own, figure, best=False)
            worst_case = dataclasses.replace(
                worst_case, pct=loss, against=best["value"], best=value, worst=worst, case=case
            )
        if misses(own, promises):
            instead = None if best is None else best["value"]
            doubts.append(Doubt(setting, case, error_pct, *worst_miss(own, promises), best is not None, instead))
    return [worst_case, *doubts] if others else [*doubts]


def _under(case: Case, point: PointResult) -> PointResult:
    """Returns the point as it is in this case."""
    return point if case == "runs" else {**point, "runs": [point[case]]}


def _best(points: PointResults, figure: str, promises: Promises) -> PointResult | None:
    """Returns the point with the best run of those that may keep both promises, as any run of theirs does."""

    def may_keep(point: PointResult) -> bool:
        lowest = {name: spread(point, name)["range"][0] for name in promises}
        return all(lowest[name] is None or lowest[name] <= limit for name, limit in promises.items())

    def rank(point: PointResult) -> float:
        value = _end(point, figure, best=True)
        return float("inf") if value is None else value if FIGURES[figure].better == "lower" else -value

    return min(filter(may_keep, points), key=rank, default=None)


def _end(point: PointResult, figure: str, *, best: bool) -> float | None:
    """Returns the best or the worst of a figure in a point's runs."""
    low, high = spread(point, figure)["range"]
    return low if (FIGURES[figure].better == "lower") == best else high


def _loss(figure: str, answer: PointResult, other: PointResult | None) -> float:
    """Returns by how many percent the answer's worst run is worse than the other's best; 0 if it is not, or not known."""
    value, best = _end(answer, figure, best=False), None if other is None else _end(other, figure, best=True)
    if value is None or not best:
        return 0.0
    worse = value / best - 1 if FIGURES[figure].better == "lower" else 1 - value / best
    return max(0.0, round(100 * worse, 1))
