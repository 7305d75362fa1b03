"""The regret of a search's answer: how much worse it may be than the best of the values that were tried.

A large prefill budget is wanted for a low TTFT p95, a large batch for throughput. The regret is the share of this figure
by which another value may be better that keeps both promises as well:

- *Measured*: another value may keep a promise if any of its runs does. Its best run is compared with the answer's worst.
- *Simulated*: all values tried are simulated again with durations shorter and longer by the error of the simulation. In
  each of these cases, the answer is compared with the best of the values that keep both promises there.

There is no regret of a single measured run, whose spread is unknown, nor of a simulation whose error is not bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roseplay.formats.numbers import number_text
from roseplay.lab.experiment import Varied
from roseplay.lab.points import spread, value_text, values_of
from roseplay.lab.sentences import in_sentence
from roseplay.sim.evidence import SATURATED
from roseplay.traffic.run_figures import FIGURES

OBJECTIVE: Mapping[str, str] = {"prefill_max_tokens": "ttft_p95_ms", "max_batch_size": "output_tokens_per_s"}

Point = Mapping[str, Any]
Figures = Mapping[str, Any]
Promises = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Regret:
    """The regret of an answer.

    Attributes:
        figure: what the answer is for, see ``OBJECTIVE``.
        pct: at most, in percent of that figure; ``None`` if it is not known.
        against: the other value that may be better; ``None`` if there is none.
        sentences: it in words, and what else the error of a simulation may change.
    """

    figure: str
    pct: float | None
    against: int | None
    sentences: Sequence[str]

    def document(self) -> dict[str, Any]:
        """Returns the figures for a summary."""
        return {"figure": self.figure, "pct": self.pct, "against": self.against}


def regret(
    setting: Varied, promises: Promises, answer: Point, tried: Sequence[Point], simulated: Mapping[str, Any] | None
) -> Regret:
    """Returns the regret of ``answer``, one of the points ``tried``.

    Args:
        simulated: what a result says of simulated arms, see ``document.Simulated``; ``None`` for measured ones. Simulated
            points with repeats, which kept the cache, count as measured.
    """
    figure = OBJECTIVE[setting]
    others = [point for point in tried if point["value"] != answer["value"]]
    if simulated is None or len(answer["runs"]) > 1:
        return _measured(setting, figure, promises, answer, others)
    if answer["runs"][0]["saturated"]:
        return Regret(figure, None, None, [f"Regret: not known, because this value is {SATURATED}."])
    if simulated["error_pct"] is None:
        return Regret(figure, None, None, ["Regret: not known, because the error of the simulation is not bounded."])
    if not all("shorter" in point and "longer" in point for point in tried):
        return Regret(
            figure, None, None, ["Regret: not known, because the values were not simulated with other durations."]
        )
    return _simulated(setting, figure, promises, answer, others, simulated)


def _measured(setting: Varied, figure: str, promises: Promises, answer: Point, others: Sequence[Point]) -> Regret:
    if not others:
        return Regret(figure, 0.0, None, [])
    if len(answer["runs"]) < 2:
        return Regret(figure, None, None, ["Regret: not known from one run a value, which shows no spread."])
    title, better = in_sentence(FIGURES[figure].title), FIGURES[figure].better
    worst = _end(answer, figure, best=False)
    found = [
        (_loss(worst, _end(point, figure, best=True), better), point)
        for point in others
        if all(_may_keep(point, name, limit) for name, limit in promises.items())
    ]
    pct, point = max(found, key=lambda one: one[0], default=(0.0, answer))
    if not pct:
        said = f"Regret: 0 % of {title} among the values tried, within the spread of their runs."
        return Regret(figure, 0.0, None, [said])
    best = _end(point, figure, best=True)
    said = (
        f"Regret: at most {number_text(pct)} % of {title}: within the spread of their runs,"
        f" {value_text(setting, point['value'])} may keep both promises too, with {_against(figure, best, worst)}."
    )
    return Regret(figure, pct, point["value"], [said])


def _simulated(
    setting: Varied,
    figure: str,
    promises: Promises,
    answer: Point,
    others: Sequence[Point],
    simulated: Mapping[str, Any],
) -> Regret:
    title, better = in_sentence(FIGURES[figure].title), FIGURES[figure].better
    pct, against, said, more = 0.0, None, "", []
    off = f"{simulated['error_pct']:g} %"
    for case, when in _CASES.items():
        when, own = when.format(off), _under(case, answer)
        kept = [point for point in others if not _broken(_under(case, point), promises)]
        best = min(kept, key=lambda point: _rank(_under(case, point)[figure], better), default=None)
        loss = 0.0 if best is None else _loss(own[figure], _under(case, best)[figure], better)
        if best is not None and loss > pct:
            pct, against = loss, best["value"]
            figures = _against(figure, _under(case, best)[figure], own[figure])
            said = f": {when}, {value_text(setting, against)} keeps both promises too, with {figures}"
        if broken := _broken(own, promises):
            name = max(broken, key=broken.__getitem__)
            then = "no value tried keeps both" if best is None else f"{value_text(setting, best['value'])} keeps both"
            more.append(f"But {when}, it misses {FIGURES[name].title} by {number_text(broken[name])} %; {then}.")
    within = "" if said else f" among the values tried, with durations up to {off} shorter or longer"
    first = f"Regret: {'at most ' if pct else ''}{number_text(pct)} % of {title}{within}{said}; {simulated['label']}."
    return Regret(figure, pct, against, [first, *more] if others else more)


# The runs of a value in a search on simulated hardware, and when it would have these figures.
_CASES = {"runs": "as simulated", "shorter": "with durations {} shorter", "longer": "with durations {} longer"}


def _under(case: str, point: Point) -> Figures:
    figures: Figures = point["runs"][0] if case == "runs" else point[case]
    return figures


def _broken(figures: Figures, promises: Promises) -> dict[str, float]:
    """Returns by how many percent of the limit each promise is broken."""
    found = {name: figures[name] for name in promises if figures[name] is not None}
    return {
        name: round(100 * (value / promises[name] - 1), 1) for name, value in found.items() if value > promises[name]
    }


def _may_keep(point: Point, name: str, limit: float) -> bool:
    lowest = spread(point, name)["range"][0]
    return lowest is None or lowest <= limit


def _end(point: Point, figure: str, *, best: bool) -> float | None:
    """Returns the best or the worst of a figure in a point's runs."""
    known = [value for value in values_of(point, figure) if value is not None]
    return (min if (FIGURES[figure].better == "lower") == best else max)(known, default=None)


def _loss(value: float | None, best: float | None, better: str) -> float:
    """Returns by how many percent of ``best`` a value is worse; 0 if it is not, or one of them is not known."""
    if value is None or not best:
        return 0.0
    worse = value / best - 1 if better == "lower" else 1 - value / best
    return max(0.0, round(100 * worse, 1))


def _rank(value: float | None, better: str) -> float:
    return float("inf") if value is None else value if better == "lower" else -value


def _against(figure: str, best: float | None, value: float | None) -> str:
    title, unit = in_sentence(FIGURES[figure].title), FIGURES[figure].unit
    return f"{title} {number_text(best)} against {number_text(value)} {unit}"
