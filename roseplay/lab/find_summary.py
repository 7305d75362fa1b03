"""The search itself, and its findings: the tries with their verdicts, the answer, its price, and where it applies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roseplay.formats.numbers import number_text
from roseplay.lab.experiment import Varied
from roseplay.lab.points import runs_text, spread, value_text, values_of
from roseplay.lab.regret import Regret, regret
from roseplay.lab.simulated_text import is_simulated, simulated_sentences
from roseplay.lab.sweep_summary import changes, figure_text, saturated_values
from roseplay.traffic.run_figures import FIGURES

PROMISES = ("itl_p99_ms", "ttft_p95_ms")
SMALLEST = ("prefill_max_tokens",)  # for other settings, the largest value is wanted
MORE_RUNS = 3  # a value with an unsure verdict has at most this many times the repeats as runs
_PRICE = ("ttft_p95_ms", "ttft_p99_ms", "e2e_p99_ms", "output_tokens_per_s")

Point = Mapping[str, Any]
Promises = Mapping[str, float]


class Search:
    """Bisection for the smallest (for a batch: the largest) value of a grid that keeps both promises.

    It assumes that ITL rises with the value, and TTFT falls. If that is not so, the answer is still a value that was
    tried and kept both, while its neighbour on the grid was tried and did not.

    Attributes:
        left: first and last index in the grid that may still be the answer; at the end, the first is the greater one.
        best: index of the best value that kept both; ``None`` if there is none yet.
    """

    def __init__(self, grid: Sequence[int], setting: Varied) -> None:
        self.left = (0, len(grid) - 1)
        self.best: int | None = None
        self._grid, self._smallest = grid, setting in SMALLEST

    @property
    def next(self) -> int | None:
        """The value to try; ``None`` at the end."""
        return None if self.left[0] > self.left[1] else self._grid[self._middle]

    @property
    def _middle(self) -> int:
        return sum(self.left) // 2

    def record(self, kept: bool, *, more: bool) -> None:
        """Record the try of ``next``: whether it kept both promises and, if not, whether a greater value is closer."""
        low, high = self.left
        middle = self._middle
        if kept:
            self.best = middle
            upward = not self._smallest
        else:  # once a value kept both, only those between it and this one are left
            upward = more if self.best is None else self._smallest
        self.left = (middle + 1, high) if upward else (low, middle - 1)


def misses(point: Point, promises: Promises) -> dict[str, float]:
    """Returns by what share of the limit a point's median exceeds each promise that it breaks."""
    found = {name: spread(point, name)["median"] for name in PROMISES}
    return {
        name: value / promises[name] - 1
        for name, value in found.items()
        if value is not None and value > promises[name]
    }


def is_kept(point: Point, promises: Promises) -> bool:
    """Whether the medians of both figures are within their limits."""
    return not misses(point, promises)


def is_sure(point: Point, promises: Promises, repeats: int) -> bool:
    """Whether the verdict of a point's runs would hold if it were measured again.

    It is Wald's sequential sign test: the runs on one side of a limit must outnumber those on the other by ``repeats``.
    With 3, a value with four in five runs within the limit is mistaken for one that breaks it in 1.5 % of cases. If
    runs fall on either side by chance, ``MORE_RUNS`` ends the test, and the median decides. One surely broken promise
    is enough; otherwise both must surely be kept.
    """
    sides = [(2 * within - known, min(repeats, known)) for within, known in votes(point, promises).values()]
    return any(lead <= -least < 0 for lead, least in sides) or all(lead >= least for lead, least in sides)


def votes(point: Point, promises: Promises) -> dict[str, tuple[int, int]]:
    """Returns for each promise the number of runs within its limit, and the number in which it was measured."""
    found = {name: [value for value in values_of(point, name) if value is not None] for name in PROMISES}
    return {name: (sum(value <= promises[name] for value in known), len(known)) for name, known in found.items()}


def wants_more(point: Point, promises: Promises) -> bool:
    """Whether TTFT breaks its promise by more than ITL: a greater value would come closer."""
    found = misses(point, promises)
    return found.get("ttft_p95_ms", 0.0) > found.get("itl_p99_ms", 0.0)


def find_summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ``summary`` of a search, derived from its tries.

    Each try has its number of runs, the number with each figure ``within`` its limit, and whether that is ``sure``.

    ``answer`` is the value found; if none keeps both promises, ``closest`` is the one that misses by least. The other
    is ``None``, and so are both until the search has ended. ``regret`` is the answer's, see ``lab.regret``.
    """
    grid, promises, tries = document["grid"], document["promises"], document["points"]
    search = Search(grid, document["setting"])
    rows = []
    for point in tries:
        search.record(is_kept(point, promises), more=wants_more(point, promises))
        low, high = search.left
        row = _row(point, promises, [grid[low], grid[high]] if low <= high else None)
        rows.append({**row, "sure": is_sure(point, promises, document["repeats"])})
    ended = search.next is None
    answer = grid[search.best] if ended and search.best is not None else None
    closest = None
    if ended and answer is None:
        closest = min(tries, key=lambda point: max(misses(point, promises).values()))["value"]
    summary = {"points": rows, "answer": answer, "closest": closest, "ended": ended}
    doubt = None if answer is None else _regret(document, answer)
    return {
        **summary,
        "regret": None if doubt is None else doubt.document(),
        "sentences": _sentences(document, summary, [] if doubt is None else doubt.sentences),
    }


def _regret(document: Mapping[str, Any], answer: int) -> Regret:
    tries = document["points"]
    point = next(point for point in tries if point["value"] == answer)
    return regret(document["setting"], document["promises"], point, tries, document["arms"]["A"].get("simulated"))


def _row(point: Point, promises: Promises, left: list[int] | None) -> dict[str, Any]:
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
    }


def _sentences(document: Mapping[str, Any], summary: Mapping[str, Any], doubt: Sequence[str]) -> list[str]:
    own = _own_sentences(document, summary, doubt)
    return [*own, *simulated_sentences(document, saturated_values(document["setting"], document["points"]))]


def _own_sentences(document: Mapping[str, Any], summary: Mapping[str, Any], doubt: Sequence[str]) -> list[str]:
    setting, grid = document["setting"], document["grid"]
    by_value = {point["value"]: point for point in document["points"]}
    if not summary["ended"]:
        last = summary["points"][-1]["left"] if summary["points"] else (grid[0], grid[-1])
        left = " to ".join(number_text(value) for value in last)
        return [f"No answer yet: {left} are left."]
    if summary["answer"] is None:
        point = by_value[summary["closest"]]
        return [_closest(document, point), *_unsure(document, summary), *_without_limit(document), _holds_for(document)]
    answer = by_value[summary["answer"]]
    which, beyond = ("smallest", "smaller") if setting in SMALLEST else ("largest", "larger")
    values = ", ".join(_promise(document, answer, name) for name in PROMISES)
    said = [
        f"{_capital(value_text(setting, answer['value']))} is the {which} that keeps both promises: {values}.",
        *doubt,
    ]
    row = next(row for row in summary["points"] if row["value"] == answer["value"])
    if row["close"]:
        said.append(f"Not in every run: {_within(row)}.")
    place = grid.index(answer["value"]) + (-1 if setting in SMALLEST else 1)
    if 0 <= place < len(grid):
        said.append(f"{_capital(value_text(setting, grid[place]))} misses {_worst(document, by_value[grid[place]])}.")
    else:
        said.append(f"Nothing {beyond} was tried.")
    unsure = [value_text(setting, row["value"]) for row in summary["points"] if not row["sure"]]
    if unsure:
        said.append(f"Another search may find another value: the runs of {' and of '.join(unsure)} do not agree.")
    return [*said, _price(document, answer), _holds_for(document)]


def _closest(document: Mapping[str, Any], point: Point) -> str:
    setting, grid = document["setting"], document["grid"]
    first, last = number_text(grid[0]), number_text(grid[-1])
    values = ", ".join(_promise(document, point, name) for name in PROMISES)
    return (
        f"No value between {first} and {last} keeps both: {value_text(setting, point['value'])} comes closest but"
        f" misses {_worst(document, point)}. There, {values}."
    )


def _unsure(document: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """Returns a sentence on the values whose runs disagree on a broken promise, if there are any."""
    rows = [row for row in summary["points"] if not row["sure"]]
    values = "; ".join(f"at {value_text(document['setting'], row['value'])}, {_within(row)}" for row in rows)
    return [f"Not sure: {values}, so another search may find one."] if rows else []


def _within(row: Mapping[str, Any]) -> str:
    """Returns words on how many runs of a try are within the limits, for figures on which the runs disagree."""
    return " and ".join(
        f"{FIGURES[name].title} is within its limit in {row['within'][name]} of {row['runs']} runs"
        for name in row["close"]
    )


def _without_limit(document: Mapping[str, Any]) -> list[str]:
    baseline = document["baseline"]
    if document["setting"] not in SMALLEST or not is_kept(baseline, document["promises"]):
        return []
    return ["Without a limit, both are kept."]


def _price(document: Mapping[str, Any], answer: Point) -> str:
    setting, baseline = document["setting"], document["baseline"]
    if baseline["value"] == answer["value"]:
        return "It has no price: it is the largest value."
    against = "no limit" if baseline["value"] is None else value_text(setting, baseline["value"])
    price, gain = (changes(baseline, answer, names) for names in (_PRICE, ("itl_p99_ms",)))
    return f"The price of {value_text(setting, answer['value'])}, against {against}: {price}. In return: {gain}."


def _promise(document: Mapping[str, Any], point: Point, name: str) -> str:
    return f"{FIGURES[name].title} is {figure_text(point, name)} of {number_text(document['promises'][name])}"


def _worst(document: Mapping[str, Any], point: Point) -> str:
    found = misses(point, document["promises"])
    name = max(found, key=found.__getitem__)
    return f"{FIGURES[name].title} by {number_text(round(100 * found[name], 1))} %"


def _holds_for(document: Mapping[str, Any]) -> str:
    requests, once = document["points"][0]["requests"], document["repeats"] == 1 and is_simulated(document)
    runs = "" if once else f", medians of {runs_text(document['points'])}"
    return (
        f"This holds for {document['title']}, {requests} requests, seed {document['seed']}, {document['model']} on"
        f" {document['device']}{runs}."
    )


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
