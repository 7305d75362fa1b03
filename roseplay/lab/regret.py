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
from roseplay.lab.points import misses, spread, value_text, worst_miss
from roseplay.lab.sentences import in_sentence
from roseplay.sim.evidence import SATURATED
from roseplay.traffic.run_figures import FIGURES

OBJECTIVE: Mapping[str, str] = {"prefill_max_tokens": "ttft_p95_ms", "max_batch_size": "output_tokens_per_s"}

Point = Mapping[str, Any]
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
    why = None
    if answer["runs"][0].get("saturated"):
        why = f"this value is {SATURATED}"
    elif simulated["error_pct"] is None:
        why = "the error of the simulation is not bounded"
    elif not all("shorter" in point and "longer" in point for point in tried):
        why = "the values were not simulated with other durations"
    if why is not None:
        return Regret(figure, None, None, [f"Regret: not known, because {why}."])
    return _simulated(setting, figure, promises, answer, others, simulated)


def _measured(setting: Varied, figure: str, promises: Promises, answer: Point, others: Sequence[Point]) -> Regret:
    if not others:
        return Regret(figure, 0.0, None, [])
    if len(answer["runs"]) < 2:
        return Regret(figure, None, None, ["Regret: not known from one run a value, which shows no spread."])
    title, best = in_sentence(FIGURES[figure].title), _best(others, figure, promises)
    pct = _loss(figure, answer, best)
    if best is None or not pct:
        said = f"Regret: 0 % of {title} among the values tried, within the spread of their runs."
        return Regret(figure, 0.0, None, [said])
    said = (
        f"Regret: at most {number_text(pct)} % of {title}: within the spread of their runs,"
        f" {value_text(setting, best['value'])} may keep both promises too, with {_against(figure, best, answer)}."
    )
    return Regret(figure, pct, best["value"], [said])


def _simulated(
    setting: Varied,
    figure: str,
    promises: Promises,
    answer: Point,
    others: Sequence[Point],
    simulated: Mapping[str, Any],
) -> Regret:
    title = in_sentence(FIGURES[figure].title)
    pct, against, said, more = 0.0, None, "", []
    off = f"{simulated['error_pct']:g} %"
    for case, when in _CASES.items():
        when, own = when.format(off), _under(case, answer)
        best = _best([_under(case, point) for point in others], figure, promises)
        loss = _loss(figure, own, best)
        if best is not None and loss > pct:
            pct, against = loss, best["value"]
            said = (
                f": {when}, {value_text(setting, against)} keeps both promises too, with {_against(figure, best, own)}"
            )
        if misses(own, promises):
            then = "no value tried keeps both" if best is None else f"{value_text(setting, best['value'])} keeps both"
            more.append(f"But {when}, it misses {worst_miss(own, promises)}; {then}.")
    within = "" if said else f" among the values tried, with durations up to {off} shorter or longer"
    first = f"Regret: {'at most ' if pct else ''}{number_text(pct)} % of {title}{within}{said}; {simulated['label']}."
    return Regret(figure, pct, against, [first, *more] if others else more)


# The runs of a value in a search on simulated hardware, and when it would have these figures.
_CASES = {"runs": "as simulated", "shorter": "with durations {} shorter", "longer": "with durations {} longer"}


def _under(case: str, point: Point) -> Point:
    """Returns the point as it is in this case."""
    return point if case == "runs" else {**point, "runs": [point[case]]}


def _best(points: Sequence[Point], figure: str, promises: Promises) -> Point | None:
    """Returns the point with the best run of those that may keep both promises, as any run of theirs does."""

    def may_keep(point: Point) -> bool:
        lowest = {name: spread(point, name)["range"][0] for name in promises}
        return all(lowest[name] is None or lowest[name] <= limit for name, limit in promises.items())

    def rank(point: Point) -> float:
        value = _end(point, figure, best=True)
        return float("inf") if value is None else value if FIGURES[figure].better == "lower" else -value

    return min(filter(may_keep, points), key=rank, default=None)


def _end(point: Point, figure: str, *, best: bool) -> float | None:
    """Returns the best or the worst of a figure in a point's runs."""
    low, high = spread(point, figure)["range"]
    return low if (FIGURES[figure].better == "lower") == best else high


def _loss(figure: str, answer: Point, other: Point | None) -> float:
    """Returns by how many percent the answer's worst run is worse than the other's best; 0 if it is not, or not known."""
    value, best = _end(answer, figure, best=False), None if other is None else _end(other, figure, best=True)
    if value is None or not best:
        return 0.0
    worse = value / best - 1 if FIGURES[figure].better == "lower" else 1 - value / best
    return max(0.0, round(100 * worse, 1))


def _against(figure: str, other: Point, answer: Point) -> str:
    best, worst = _end(other, figure, best=True), _end(answer, figure, best=False)
    return (
        f"{in_sentence(FIGURES[figure].title)} {number_text(best)} against {number_text(worst)} {FIGURES[figure].unit}"
    )
