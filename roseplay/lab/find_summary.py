"""The search itself, and its findings: the tries with their verdicts, the answer, its price, and where it applies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roseplay.config import Knobs
from roseplay.lab.points import compare, misses, plain_value, runs_text, spread, value_text, values_of, worst_miss
from roseplay.lab.regret import regret
from roseplay.lab.simulated_text import is_once, simulated_sentences
from roseplay.lab.sweep_summary import changes, promise_text, saturated_values
from roseplay.settings import settings_of
from roseplay.traffic.run_figures import FIGURES

PROMISES = ("itl_p99_ms", "ttft_p95_ms")
MANY = 5  # an answer whose price is as many times its gain says so
MORE_RUNS = 3  # a value with an unsure verdict has at most this many times the repeats as runs
_PRICE = ("ttft_p95_ms", "ttft_p99_ms", "e2e_p99_ms", "output_tokens_per_s")

Point = Mapping[str, Any]
Promises = Mapping[str, float]


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

    def record(self, point: Point) -> None:
        """Record the try of ``next``: the medians of its figures count."""
        (low, high), place = self.left, self.next
        assert place is not None
        missed = misses(point, self._promises)
        self.best = self.best if missed else place
        more = missed.get("ttft_p95_ms", 0.0) > missed.get("itl_p99_ms", 0.0)  # a greater value would come closer
        # Once a value kept both, only those between it and the smallest that did not are left.
        upward = not missed or (more and self.best is None and place < self._last)
        self.left = (place + 1, high) if upward else (low, place - 1)


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


def find_summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ``summary`` of a search, derived from its tries.

    Each try has its number of runs, the number with each figure ``within`` its limit, and whether that is ``sure``.

    ``answer`` is the index of the try with the largest value that keeps both promises; if none does, ``closest`` is that
    of the one that misses by least. The other is ``None``, and so are both until the search has ended. For ``price`` and
    ``regret`` of the answer see ``_price`` and ``lab.regret``, for ``words`` see ``_words``.
    """
    grid, promises, tries = document["grid"], document["promises"], document["points"]
    search, rows = Search(grid, promises), []
    for point in tries:
        search.record(point)
        low, high = search.left
        rows.append(_row(document, point, [grid[low], grid[high]] if low <= high else None))
    ended, answer, closest = search.next is None, None, None
    if ended and search.best is not None:
        answer = next(place for place, point in enumerate(tries) if point["value"] == grid[search.best])
    elif ended:
        closest = min(range(len(tries)), key=lambda place: max(misses(tries[place], promises).values()))
    doubt = None
    if answer is not None:
        simulated = document["arms"]["A"].get("simulated")
        doubt = regret(document["setting"], promises, tries[answer], tries, simulated)
    summary = {
        "points": rows,
        "answer": answer,
        "closest": closest,
        "ended": ended,
        "price": None if answer is None else _price(tries[0], tries[answer], promises),
        "regret": None if doubt is None else doubt.document(),
    }
    words = _words(document, summary, [] if doubt is None else doubt.sentences)
    return {**summary, "words": words, "sentences": _sentences(document, summary, words)}


def _price(largest: Point, answer: Point, promises: Promises) -> dict[str, Any] | None:
    """Returns what an answer costs and gains against the largest value; ``None`` for that value itself.

    ``figure`` is the one that is worse by the largest ``factor``. ``gained`` are the figures whose promises the largest
    value breaks; ``gain`` is the largest factor by which one of them is better. Factors are 1 without a clear difference. The price is
    ``many`` times the gain if it adds at least ``MANY`` times as much to 1.
    """
    if answer is largest:
        return None
    gained = list(misses(largest, promises))
    costs = {name: _factor(largest, answer, name, "worse") for name in _PRICE}
    figure = max(costs, key=costs.__getitem__)
    gain = max(_factor(largest, answer, name, "better") for name in gained)
    many = costs[figure] > 1 and costs[figure] - 1 >= MANY * (gain - 1)
    return {"figure": figure, "factor": costs[figure], "gained": gained, "gain": gain, "many": many}


def _factor(before: Point, after: Point, figure: str, verdict: str) -> float:
    """Returns by what factor a figure is clearly better or worse; 1 if it is not."""
    difference = compare(before, after, figure)
    if difference.verdict != verdict or difference.ratio is None:
        return 1.0
    ratio = max(difference.ratio, 1e-9)
    return round(max(ratio, 1 / ratio), 4)


def _row(document: Mapping[str, Any], point: Point, left: list[int | None] | None) -> dict[str, Any]:
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


def _words(document: Mapping[str, Any], summary: Mapping[str, Any], doubt: Sequence[str]) -> dict[str, Any]:
    """Returns the conclusion in words.

    ``claim`` has three parts, of which the second is the value; ``figures`` are those of the claim; ``regret`` are
    sentences, and ``price`` is one. Each is empty where it says nothing.
    """
    setting, grid, tries = document["setting"], document["grid"], document["points"]
    words: dict[str, Any] = {"claim": ["", "", ""], "figures": "", "regret": list(doubt), "price": ""}
    if not summary["ended"]:
        low, high = map(plain_value, summary["points"][-1]["left"])
        return {
            **words,
            "claim": ["", "", f"No answer yet: {f'{low} is' if low == high else f'{low} to {high} are'} left"],
        }
    if summary["answer"] is None:
        point = tries[summary["closest"]]
        claim = f"No value from {plain_value(grid[0])} to {plain_value(grid[-1])} keeps both: "
        claim += (
            f"{value_text(setting, point['value'])} comes closest but misses {worst_miss(point, document['promises'])}"
        )
        return {**words, "claim": ["", "", claim], "figures": f"There, {_kept(document, point)}"}
    point, price, label = tries[summary["answer"]], summary["price"], settings_of(Knobs)[setting].label
    words["figures"] = _kept(document, point)
    if point["value"] is None:
        return {**words, "claim": ["", f"No {label.lower()}", " is needed, as both promises are kept without one"]}
    end = " is the largest that keeps both promises"
    if price is not None:
        words["price"] = _price_sentence(document, point, price)
        if price["many"]:
            end += f", at a price many times its gain ({changes(tries[0], point, [price['figure'], *price['gained']])})"
    return {**words, "claim": [f"{label} ", plain_value(point["value"]), end]}


def _sentences(document: Mapping[str, Any], summary: Mapping[str, Any], words: Mapping[str, Any]) -> list[str]:
    """Returns the words as sentences, with those on the other tries, and on where the conclusion holds."""
    first = "".join(words["claim"])
    if words["figures"]:
        first += f"{'.' if summary['answer'] is None else ':'} {words['figures']}"
    said = [f"{first}.", *words["regret"]]
    if summary["ended"]:
        said += _of_tries(document, summary)
        said += [words["price"]] if words["price"] else []
        said += [_holds_for(document)]
    return [*said, *simulated_sentences(document, saturated_values(document["setting"], document["points"]))]


def _of_tries(document: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """Returns sentences on runs that disagree, and on the value next to the answer."""
    setting, rows = document["setting"], summary["points"]
    unsure = [row for row in rows if not row["sure"]]
    if summary["answer"] is None:
        values = "; ".join(f"at {value_text(setting, row['value'])}, {_within(row)}" for row in unsure)
        return [f"Not sure: {values}, so another search may find one."] if unsure else []
    row = rows[summary["answer"]]
    said = [f"Not in every run: {_within(row)}."] if row["close"] else []
    place = document["grid"].index(row["value"]) + 1
    if place < len(document["grid"]):
        beyond = next(point for point in document["points"] if point["value"] == document["grid"][place])
        said.append(
            f"{value_text(setting, beyond['value']).capitalize()} misses {worst_miss(beyond, document['promises'])}."
        )
    elif row["value"] is not None:
        said.append("Nothing larger was tried.")
    if unsure:
        values = " and of ".join(value_text(setting, row["value"]) for row in unsure)
        said.append(f"Another search may find another value: the runs of {values} do not agree.")
    return said


def _within(row: Mapping[str, Any]) -> str:
    """Returns words on how many runs of a try are within the limits, for figures on which the runs disagree."""
    return " and ".join(
        f"{FIGURES[name].title} is within its limit in {row['within'][name]} of {row['runs']} runs"
        for name in row["close"]
    )


def _price_sentence(document: Mapping[str, Any], answer: Point, price: Mapping[str, Any]) -> str:
    setting, largest, gained = document["setting"], document["points"][0], price["gained"]
    costs = changes(largest, answer, [name for name in _PRICE if name not in gained])
    gains = changes(largest, answer, gained)
    return f"The price of {value_text(setting, answer['value'])}, against {value_text(setting, largest['value'])}: {costs}. In return: {gains}."


def _kept(document: Mapping[str, Any], point: Point) -> str:
    return ", ".join(promise_text(point, name, document["promises"]) for name in PROMISES)


def _holds_for(document: Mapping[str, Any]) -> str:
    requests = document["points"][0]["requests"]
    runs = "" if is_once(document) else f", medians of {runs_text(document['points'])}"
    return (
        f"This holds for {document['title']}, {requests} requests, seed {document['seed']}, {document['model']} on"
        f" {document['device']}{runs}."
    )
