"""The search itself, and its findings: the answer, its price, what casts doubt on it, and where it applies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from roseplay.extras.lab.document import FindResult
from roseplay.extras.lab.findings.finding import Finding, Level, Row, conditions, how_measured, is_once, rows_between
from roseplay.extras.lab.findings.regret import regret
from roseplay.extras.lab.points import LIMITED, compare, misses, saturated_values, spread, values_of, worst_miss
from roseplay.extras.lab.types import FigureName, Limits, MeasuredPoint, Plain, PointRow, Summary, Value, Varied
from roseplay.traffic.difference import Verdict

MANY = 5  # an answer whose price is as many times its gain says so
MORE_RUNS = 3  # a value with an unsure verdict has at most this many times the repeats as runs
_PRICE: tuple[FigureName, ...] = ("ttft_p95_ms", "ttft_p99_ms", "e2e_p99_ms", "output_tokens_per_s")


class Search:
    """Bisection for the largest value of a grid, the least restrictive, that keeps both limits. The last comes first.

    It assumes that ITL rises with the value, and TTFT falls. If that is not so, the answer is still a value that was
    tried and kept both, while the next one on the grid was tried and did not.

    Attributes:
        left: first and last index in the grid that may still be the answer; at the end, the first is the greater one.
        best: index of the largest value that kept both; ``None`` if there is none yet.
    """

    def __init__(self, grid: Sequence[int | None], limits: Limits) -> None:
        self.left = (0, len(grid) - 1)
        self.best: int | None = None
        self._last, self._limits = len(grid) - 1, limits

    @property
    def next(self) -> int | None:
        """The index of the value to try; ``None`` at the end."""
        low, high = self.left
        if low > high:
            return None
        return high if high == self._last else (low + high) // 2

    def record(self, point: MeasuredPoint) -> None:
        """Record the try of ``next``: the medians of its figures count."""
        (low, high), place = self.left, self.next
        assert place is not None
        missed = misses(point, self._limits)
        self.best = self.best if missed else place
        more = missed.get("ttft_p95_ms", 0.0) > missed.get("itl_p99_ms", 0.0)  # a greater value would come closer
        # Once a value kept both, only those between it and the smallest that did not are left.
        upward = not missed or (more and self.best is None and place < self._last)
        self.left = (place + 1, high) if upward else (low, place - 1)


def is_sure(point: MeasuredPoint, limits: Limits, repeats: int) -> bool:
    """Whether the verdict of a point's runs would hold if it were measured again.

    It is Wald's sequential sign test: the runs on one side of a limit must outnumber those on the other by ``repeats``.
    With 3, a value with four in five runs within the limit is mistaken for one that exceeds it in 1.5 % of cases. If
    runs fall on either side by chance, ``MORE_RUNS`` ends the test, and the median decides. One limit that is surely
    exceeded is enough; otherwise both must surely be kept.
    """
    sides = [(2 * within - count, min(repeats, count)) for within, count in votes(point, limits).values()]
    return any(lead <= -least < 0 for lead, least in sides) or all(lead >= least for lead, least in sides)


def votes(point: MeasuredPoint, limits: Limits) -> dict[FigureName, tuple[int, int]]:
    """Returns for each figure with a limit the number of runs within it, and the number in which it was measured."""
    figures = {name: [value for value in values_of(point, name) if value is not None] for name in LIMITED}
    return {
        name: (sum(value <= limits[LIMITED[name]] for value in values), len(values)) for name, values in figures.items()
    }


# -- what it found


class Unfinished(Finding):
    """The search has not ended: the range of values that are left."""

    low: Value
    high: Value


class Answer(Finding):
    """The largest value that keeps both limits; ``None`` if no setting is needed. ``price`` is how figures change against
    the largest value, if that is many times what is gained."""

    setting: Varied
    value: Value
    price: list[Row]


class NoAnswer(Finding):
    """No value keeps both limits: the range that was searched, and the one that misses by least."""

    setting: Varied
    low: Value
    high: Value
    closest: Value
    figure: FigureName
    miss_pct: float


class Limited(Finding):
    """The figures with limits of the answer, or of the value that comes closest to one."""

    is_answer: bool
    levels: list[Level]


class Disagreement(Finding):
    """Values whose runs disagree on a limit: the ``answer``; others, so that there may be ``another`` answer; or, in a
    search without one, so that there may be ``one``. By value, each figure with its runs within the limit, and all runs."""

    of: Literal["answer", "another", "one"]
    setting: Varied
    values: list[tuple[Value, list[tuple[FigureName, int, int]]]]


class Beyond(Finding):
    """The next larger value, and by how much it exceeds a limit; no value if none was tried."""

    setting: Varied
    tried: bool
    value: Value = None
    figure: FigureName | Literal[""] = ""
    miss_pct: float = 0.0


class SearchPrice(Finding):
    """What the answer costs and gains against the largest value. Factors are 1 without a clear difference."""

    setting: Varied
    value: Value
    against: Value
    figure: FigureName  # the one that is worse by most,
    factor: float  # and by what factor
    gain: float  # the largest factor by which a figure is better whose limit the largest value exceeds
    many: bool  # whether the price is many times the gain: it adds at least ``MANY`` times as much to 1
    costs: list[Row]  # how the other figures,
    gains: list[Row]  # and those whose limits the largest value exceeds, change


class HoldsFor(Finding):
    """The conditions under which the conclusion holds."""

    settings: Plain  # see ``conditions``
    title: str
    seed: float
    model: str
    device: str
    requests: int
    runs: list[int]  # the least and most of a value, unless simulated once


def search_findings(document: FindResult) -> tuple[Summary, list[Finding]]:
    """Returns the ``summary`` of a search, derived from its tries, and its findings."""
    grid, limits, tries, setting = document["grid"], document["limits"], document["points"], document["setting"]
    search, rows = Search(grid, limits), list[PointRow]()
    for point in tries:
        search.record(point)
        rows.append(_row(document, point, search.left))
    summary: Summary = {"points": rows, "answer": None, "closest": None, "ended": search.next is None}
    findings: list[Finding]
    if not summary["ended"]:
        low, high = search.left
        findings = [Unfinished(grid[low], grid[high])]
    elif search.best is None:
        place = summary["closest"] = min(
            range(len(tries)), key=lambda place: max(misses(tries[place], limits).values())
        )
        findings = _vain(document, tries[place], rows)
    else:
        place = next(place for place, point in enumerate(tries) if point["value"] == grid[search.best])
        summary["answer"] = place
        price = search_price(setting, tries[0], tries[place], limits)
        findings = _answered(document, tries[place], rows[place], price)
        findings += _disagreement("another", setting, [row for row in rows if not row["sure"]])
        findings += [] if price is None else [price]
    if summary["ended"]:
        counts = [len(point["runs"]) for point in tries]
        runs = [] if is_once(document) else [min(counts), max(counts)]
        about = (document["title"], document["seed"], document["model"], document["device"], tries[0]["requests"])
        findings.append(HoldsFor(conditions(document["arms"]["A"], but=setting), *about, runs))
    return summary, [*findings, *how_measured(document, values=saturated_values(tries))]


def _row(document: FindResult, point: MeasuredPoint, left: tuple[int, int]) -> PointRow:
    limits, grid, (low, high) = document["limits"], document["grid"], left
    exceeded, kept = misses(point, limits), votes(point, limits)
    return {
        "value": point["value"],
        "kept": not exceeded,
        "misses": {name: round(100 * share, 1) for name, share in exceeded.items()},  # percent of the limit
        "runs": len(point["runs"]),
        "within": {name: within for name, (within, _) in kept.items()},
        "close": [name for name, (within, count) in kept.items() if 0 < within < count],
        "figures": {name: spread(point, name) for name in (*LIMITED, *_PRICE)},
        "left": [grid[low], grid[high]] if low <= high else None,
        "sure": is_sure(point, limits, document["repeats"]),
    }


def _vain(document: FindResult, point: MeasuredPoint, rows: Sequence[PointRow]) -> list[Finding]:
    """Returns the findings of a search without an answer; ``point`` comes closest to one."""
    setting, grid, limits = document["setting"], document["grid"], document["limits"]
    findings: list[Finding] = [
        NoAnswer(setting, grid[0], grid[-1], point["value"], *worst_miss(point, limits)),
        Limited(False, _levels(point, limits)),
    ]
    return [*findings, *_disagreement("one", setting, [row for row in rows if not row["sure"]])]


def _answered(document: FindResult, answer: MeasuredPoint, row: PointRow, price: SearchPrice | None) -> list[Finding]:
    """Returns the findings about the answer and the next larger value."""
    setting, limits, tries = document["setting"], document["limits"], document["points"]
    grid: Sequence[Value] = document["grid"]
    claimed = []
    if price is not None and price.many:
        claimed = rows_between(tries[0], answer, [price.figure, *misses(tries[0], limits)])
    findings: list[Finding] = [Answer(setting, answer["value"], claimed), Limited(True, _levels(answer, limits))]
    findings += regret(setting, limits, answer, tries, document["arms"]["A"].get("simulated"))
    findings += _disagreement("answer", setting, [row] if row["close"] else [])
    place = grid.index(answer["value"]) + 1
    if place < len(grid):
        beyond = next(point for point in tries if point["value"] == grid[place])
        findings.append(Beyond(setting, True, beyond["value"], *worst_miss(beyond, limits)))
    elif answer["value"] is not None:
        findings.append(Beyond(setting, False))
    return findings


def search_price(setting: Varied, largest: MeasuredPoint, answer: MeasuredPoint, limits: Limits) -> SearchPrice | None:
    """Returns what an answer costs and gains against the largest value; ``None`` for that value itself."""
    if answer is largest:
        return None
    gained = list(misses(largest, limits))
    costs = {name: _factor(largest, answer, name, "worse") for name in _PRICE}
    figure = max(costs, key=costs.__getitem__)
    gain = max(_factor(largest, answer, name, "better") for name in gained)
    return SearchPrice(
        setting=setting,
        value=answer["value"],
        against=largest["value"],
        figure=figure,
        factor=costs[figure],
        gain=gain,
        many=costs[figure] > 1 and costs[figure] - 1 >= MANY * (gain - 1),
        costs=rows_between(largest, answer, [name for name in _PRICE if name not in gained]),
        gains=rows_between(largest, answer, gained),
    )


def _factor(before: MeasuredPoint, after: MeasuredPoint, figure: FigureName, verdict: Verdict) -> float:
    """Returns by what factor a figure is clearly better or worse; 1 if it is not."""
    difference = compare(before, after, figure)
    if difference.verdict != verdict or difference.ratio is None:
        return 1.0
    ratio = max(difference.ratio, 1e-9)
    return round(max(ratio, 1 / ratio), 4)


def _levels(point: MeasuredPoint, limits: Limits) -> list[Level]:
    return [Level.of(point, name, limits[limit]) for name, limit in LIMITED.items()]


def _disagreement(
    of: Literal["answer", "another", "one"], setting: Varied, rows: Sequence[PointRow]
) -> list[Disagreement]:
    values = [(row["value"], [(name, row["within"][name], row["runs"]) for name in row["close"]]) for row in rows]
    return [Disagreement(of, setting, values)] if values else []
