"""The search itself, and its findings: the answer, its price, what casts doubt on it, and where it applies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from roseplay.lab.document import Value, Varied
from roseplay.lab.findings.finding import Finding, Level, Row, how_measured, is_once, rows_between
from roseplay.lab.findings.regret import Promises, regret
from roseplay.lab.points import (
    PointResult,
    compare,
    misses,
    saturated_values,
    spread,
    values_of,
    worst_miss,
)

PROMISES = ("itl_p99_ms", "ttft_p95_ms")
MANY = 5  # an answer whose price is as many times its gain says so
MORE_RUNS = 3  # a value with an unsure verdict has at most this many times the repeats as runs
_PRICE = ("ttft_p95_ms", "ttft_p99_ms", "e2e_p99_ms", "output_tokens_per_s")


class Search:
    """Bisection for the largest value of a grid, the least restrictive, that keeps both promises. The last comes first.

    It assumes that ITL rises with the value, and TTFT falls. If that is not so, the answer is still a value that was
    tried and kept both, while the next one on the grid was tried and did not.

    Attributes:
        left: first and last index in the grid that may still be the answer; at the end, the first is the greater one.
        best: index of the largest value that kept both; ``None`` if there is none yet.
    """

    def __init__(self, grid: Sequence[int | None], promises: Promises) -> None:
        self.left = (0, len(grid) - 1)
        self.best: int | None = None
        self._last, self._promises = len(grid) - 1, promises

    @property
    def next(self) -> int | None:
        """The index of the value to try; ``None`` at the end."""
        low, high = self.left
        if low > high:
            return None
        return high if high == self._last else (low + high) // 2

    def record(self, point: PointResult) -> None:
        """Record the try of ``next``: the medians of its figures count."""
        (low, high), place = self.left, self.next
        assert place is not None
        missed = misses(point, self._promises)
        self.best = self.best if missed else place
        more = missed.get("ttft_p95_ms", 0.0) > missed.get("itl_p99_ms", 0.0)  # a greater value would come closer
        # Once a value kept both, only those between it and the smallest that did not are left.
        upward = not missed or (more and self.best is None and place < self._last)
        self.left = (place + 1, high) if upward else (low, place - 1)


def is_sure(point: PointResult, promises: Promises, repeats: int) -> bool:
    """Whether the verdict of a point's runs would hold if it were measured again.

    It is Wald's sequential sign test: the runs on one side of a limit must outnumber those on the other by ``repeats``.
    With 3, a value with four in five runs within the limit is mistaken for one that breaks it in 1.5 % of cases. If
    runs fall on either side by chance, ``MORE_RUNS`` ends the test, and the median decides. One surely broken promise
    is enough; otherwise both must surely be kept.
    """
    sides = [(2 * within - known, min(repeats, known)) for within, known in votes(point, promises).values()]
    return any(lead <= -least < 0 for lead, least in sides) or all(lead >= least for lead, least in sides)


def votes(point: PointResult, promises: Promises) -> dict[str, tuple[int, int]]:
    """Returns for each promise the number of runs within its limit, and the number in which it was measured."""
    known = {name: [value for value in values_of(point, name) if value is not None] for name in PROMISES}
    return {name: (sum(value <= promises[name] for value in values), len(values)) for name, values in known.items()}


# -- what it found


class Unfinished(Finding):
    """The search has not ended: the range of values that are left."""

    low: Value
    high: Value


class Answer(Finding):
    """The largest value that keeps both promises; ``None`` if no limit is needed. ``price`` is how figures change against
    the largest value, if that is many times what is gained."""

    setting: Varied
    value: Value
    price: list[Row]


class NoAnswer(Finding):
    """No value keeps both promises: the range that was searched, and the one that misses by least."""

    setting: Varied
    low: Value
    high: Value
    closest: Value
    figure: str
    miss_pct: float


class Promised(Finding):
    """The promised figures of the answer, or of the value that comes closest to one."""

    is_answer: bool
    levels: list[Level]


class Disagreement(Finding):
    """Values whose runs disagree on a promise: the ``answer``; others, so that there may be ``another`` answer; or, in a
    search without one, so that there may be ``one``. By value, each figure with its runs within the limit, and all runs."""

    of: Literal["answer", "another", "one"]
    setting: Varied
    values: list[tuple[Value, list[tuple[str, int, int]]]]


class Beyond(Finding):
    """The next larger value, and by how much it misses a promise; no value if none was tried."""

    setting: Varied
    tried: bool
    value: Value = None
    figure: str = ""
    miss_pct: float = 0.0


class SearchPrice(Finding):
    """What the answer costs and gains against the largest value. Factors are 1 without a clear difference."""

    setting: Varied
    value: Value
    against: Value
    figure: str  # the one that is worse by most,
    factor: float  # and by what factor
    gain: float  # the largest factor by which a figure is better whose promise the largest value breaks
    many: bool  # whether the price is many times the gain: it adds at least ``MANY`` times as much to 1
    costs: list[Row]  # how the other figures,
    gains: list[Row]  # and those whose promises the largest value breaks, change


class HoldsFor(Finding):
    """The conditions under which the conclusion holds; ``runs`` are the least and most per value, unless simulated once."""

    title: str
    seed: int
    model: str
    device: str
    requests: int
    runs: list[int]


def search_findings(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[Finding]]:
    """Returns the ``summary`` of a search, derived from its tries, and its findings.

    Each try has its number of runs, the number with each figure ``within`` its limit, and whether that is ``sure``.

    ``answer`` is the index of the try with the largest value that keeps both promises; if none does, ``closest`` is that
    of the one that misses by least. The other is ``None``, and so are both until the search has ended.
    """
    grid, promises, tries, setting = (document[name] for name in ("grid", "promises", "points", "setting"))
    search, rows = Search(grid, promises), []
    for point in tries:
        search.record(point)
        low, high = search.left
        rows.append(_row(document, point, [grid[low], grid[high]] if low <= high else None))
    summary: dict[str, Any] = {"points": rows, "answer": None, "closest": None, "ended": search.next is None}
    findings: list[Finding]
    if not summary["ended"]:
        findings = [Unfinished(*rows[-1]["left"])]
    elif search.best is None:
        place = summary["closest"] = min(
            range(len(tries)), key=lambda place: max(misses(tries[place], promises).values())
        )
        findings = _vain(document, tries[place], rows)
    else:
        place = next(place for place, point in enumerate(tries) if point["value"] == grid[search.best])
        summary["answer"] = place
        price = search_price(setting, tries[0], tries[place], promises)
        findings = _answered(document, tries[place], rows[place], price)
        findings += _disagreement("another", setting, [row for row in rows if not row["sure"]])
        findings += [] if price is None else [price]
    if summary["ended"]:
        counts = sorted({len(point["runs"]) for point in tries})
        about = {name: document[name] for name in ("title", "seed", "model", "device")}
        runs = [] if is_once(document) else [counts[0], counts[-1]]
        findings.append(HoldsFor(**about, requests=tries[0]["requests"], runs=runs))
    return summary, [*findings, *how_measured(document, values=saturated_values(tries))]


def _row(document: Mapping[str, Any], point: PointResult, left: list[int | None] | None) -> dict[str, Any]:
    promises = document["promises"]
    broken = misses(point, promises)
    ranges = {name: spread(point, name)["range"] for name in PROMISES}
    return {
        "value": point["value"],
        "kept": not broken,
        "misses": {name: round(100 * share, 1) for name, share in broken.items()},  # percent of the limit
        "runs": len(point["runs"]),
        "within": {name: within for name, (within, _) in votes(point, promises).items()},
        "close": [name for name, (low, high) in ranges.items() if low is not None and low <= promises[name] < high],
        "figures": {name: spread(point, name) for name in (*PROMISES, *_PRICE)},
        "left": left,
        "sure": is_sure(point, promises, document["repeats"]),
    }


def _vain(document: Mapping[str, Any], point: PointResult, rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Returns the findings of a search without an answer; ``point`` comes closest to one."""
    setting, grid, promises = document["setting"], document["grid"], document["promises"]
    findings: list[Finding] = [
        NoAnswer(setting, grid[0], grid[-1], point["value"], *worst_miss(point, promises)),
        Promised(False, _levels(point, promises)),
    ]
    return [*findings, *_disagreement("one", setting, [row for row in rows if not row["sure"]])]


def _answered(
    document: Mapping[str, Any], answer: PointResult, row: Mapping[str, Any], price: SearchPrice | None
) -> list[Finding]:
    """Returns the findings about the answer and the next larger value."""
    setting, grid, promises, tries = (document[name] for name in ("setting", "grid", "promises", "points"))
    claimed = []
    if price is not None and price.many:
        claimed = rows_between(tries[0], answer, [price.figure, *misses(tries[0], promises)])
    findings: list[Finding] = [Answer(setting, answer["value"], claimed), Promised(True, _levels(answer, promises))]
    findings += regret(setting, promises, answer, tries, document["arms"]["A"].get("simulated"))
    findings += _disagreement("answer", setting, [row] if row["close"] else [])
    place = grid.index(answer["value"]) + 1
    if place < len(grid):
        beyond = next(point for point in tries if point["value"] == grid[place])
        findings.append(Beyond(setting, True, beyond["value"], *worst_miss(beyond, promises)))
    elif answer["value"] is not None:
        findings.append(Beyond(setting, False))
    return findings


def search_price(setting: Varied, largest: PointResult, answer: PointResult, promises: Promises) -> SearchPrice | None:
    """Returns what an answer costs and gains against the largest value; ``None`` for that value itself."""
    if answer is largest:
        return None
    gained = list(misses(largest, promises))
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


def _factor(before: PointResult, after: PointResult, figure: str, verdict: str) -> float:
    """Returns by what factor a figure is clearly better or worse; 1 if it is not."""
    difference = compare(before, after, figure)
    if difference.verdict != verdict or difference.ratio is None:
        return 1.0
    ratio = max(difference.ratio, 1e-9)
    return round(max(ratio, 1 / ratio), 4)


def _levels(point: PointResult, promises: Promises) -> list[Level]:
    return [Level.of(point, name, promises[name]) for name in PROMISES]


def _disagreement(
    of: Literal["answer", "another", "one"], setting: Varied, rows: Sequence[Mapping[str, Any]]
) -> list[Disagreement]:
    values = [(row["value"], [(name, row["within"][name], row["runs"]) for name in row["close"]]) for row in rows]
    return [Disagreement(of, setting, values)] if values else []
