"""The summary of a sweep: its figures with their ranges, the knee, the peak of goodput, and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from roseplay.formats.numbers import number_text, range_text
from roseplay.formats.text import listed
from roseplay.lab.crossing import CROSSED, Crossing
from roseplay.lab.experiment import Varied
from roseplay.lab.knee import PROMISED, Fall, bend, broken, falls, overtaken, rate_knee
from roseplay.lab.points import PROMPT, RATE, TRAFFIC, arm_points, compare, runs_text, spread, value_text, values_of
from roseplay.lab.sentences import brief
from roseplay.lab.simulated_text import is_exact, simulated_sentences
from roseplay.lab.spread import is_small, spread_pct
from roseplay.lab.summary import figure_row
from roseplay.traffic.difference import spread_text
from roseplay.traffic.run_figures import FIGURES

SHOWN = ("output_tokens_per_s", "goodput_req_s", "kept_pct", "ttft_p95_ms", "itl_p99_ms")
OF_PREEMPTIONS = ("preemptions", "recomputed_tokens", "moved_mb")  # shown if any run has them
_OFF = 0.05  # share by which the mean length of prompts may differ from its value without a sentence about it
_CHANGES = ("output_tokens_per_s", "ttft_p95_ms", "itl_p99_ms", "e2e_p99_ms")

Points = Sequence[Mapping[str, Any]]


def sweep_summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ``summary`` of a sweep, derived from its points and limits.

    Each point has the median and range of its figures, and whether it keeps the promise: median TTFT p95 and ITL p99
    within the limits. ``knee`` is the index of the largest rate (or prompt length) up to which every one keeps the
    promise or, for other settings, after which ITL p99 rises steeply. ``peak`` is the index of the highest goodput, if
    it rises up to there and falls afterwards. Both are ``None`` if there is none within the range.

    If B was measured too, ``b`` has its ``points``, ``knee`` and ``peak``, and ``crossings`` says for each figure of
    ``crossing.CROSSED`` between which values A and B cross, and which verdict B has at each value.
    """
    setting, latency, of_arms = document["setting"], latency_of(document["setting"]), arm_points(document)
    runs = [run for points in of_arms.values() for point in points for run in point["runs"]]
    shown = [*SHOWN, *(name for name in OF_PREEMPTIONS if any(run[name] for run in runs))]
    arms = {arm: _arm_summary(document, points, shown) for arm, points in of_arms.items()}
    (found, said), crossings = arms["A"], {}
    if "B" in arms:
        crossings = {name: Crossing.of(setting, name, of_arms["A"], of_arms["B"]) for name in CROSSED}
        said = [crossing.sentence() for crossing in crossings.values()]
        said += [f"{arm}: {sentence}" for arm, (_, own) in arms.items() for sentence in own]
    else:
        points = of_arms["A"]
        said += [_ends_sentence(points, setting)] if len(points) > 1 else []
        fallen = falls(points, list(PROMISED)) if setting == RATE else []
        said += [_fall_sentence(points, max(fallen, key=lambda fall: fall.ratio))] if fallen else []
    found = {**found, "latency": latency, "sentences": said}
    if crossings:
        found["b"] = arms["B"][0]
        found["crossings"] = {name: crossing.document() for name, crossing in crossings.items()}
    said += _off_sentences(of_arms["A"]) if setting == PROMPT else []
    most = document.get("max_spread_pct")
    if most is not None:
        wide = {
            arm: [point for point in points if not is_small(values_of(point, latency), most)]
            for arm, points in of_arms.items()
        }
        found["spread"] = {"figure": latency, "reached": not any(wide.values())}
        for arm, points in wide.items():
            said += [_wide_sentence(points, setting, latency, f"{arm}: " if crossings else "")] if points else []
    saturated = (saturated_values(setting, points) for points in of_arms.values())
    said += simulated_sentences(document, list(dict.fromkeys(chain.from_iterable(saturated))))
    return found


def point_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows of a summary's table; if there are two arms, both at each value, each with its ``arm``."""
    summary = document["summary"]
    if "b" not in summary:
        return list(summary["points"])
    rows = [{**row, "arm": arm} for arm, of in (("A", summary), ("B", summary["b"])) for row in of["points"]]
    return sorted(rows, key=itemgetter("value"))  # keeps A before B


def _arm_summary(document: Mapping[str, Any], points: Points, shown: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Returns the points of an arm with their figures, knee and peak; and the sentences about these two."""
    setting, limits = document["setting"], document["limits"]
    rows = [
        {
            "value": point["value"],
            "requests": point["requests"],
            "kept": not broken(point, limits),
            "runs": len(point["runs"]),
            "figures": {name: spread(point, name) for name in shown},
        }
        for point in points
    ]
    latency, kept = latency_of(setting), [row["kept"] for row in rows]
    if setting in TRAFFIC:
        place = rate_knee(kept)
        said = [_knee_sentence(points, setting, limits, kept)]
    else:
        place = bend(points, latency)
        said = [_bend_sentence(points, setting, latency, place)]
    peak, ties, dips = goodput_peak(points)
    said.append(_peak_sentence(points, setting, peak, ties, dips))
    clear = not ties and not dips and 0 < peak < len(points) - 1  # beyond the ends it may be higher
    return {"points": rows, "knee": place, "peak": peak if clear else None}, said


def saturated_values(setting: Varied, points: Points) -> list[str]:
    """Returns the values whose simulated runs were saturated, as in ``at 8 req/s``."""
    saturated = (point["value"] for point in points if any(run.get("saturated") for run in point["runs"]))
    return [f"at {value_text(setting, value)}" for value in saturated]


def latency_of(setting: Varied) -> str:
    """Returns the latency figure that matters in a sweep of this setting."""
    return "ttft_p95_ms" if setting in TRAFFIC else "itl_p99_ms"


def goodput_peak(points: Points) -> tuple[int, list[int], list[int]]:
    """Returns the index of the highest goodput, those of values that are not clearly below it, and those of dips.

    A dip is clearly lower than a value farther from the peak.
    """
    medians = [spread(point, "goodput_req_s")["median"] or 0.0 for point in points]
    peak = max(range(len(points)), key=medians.__getitem__)
    others = [place for place in range(len(points)) if place != peak]
    ties = [place for place in others if not compare(points[peak], points[place], "goodput_req_s").clear]

    def is_dip(place: int) -> bool:
        farther = points[:place] if place < peak else points[place + 1 :]
        return any(compare(points[place], other, "goodput_req_s").verdict == "better" for other in farther)

    return peak, ties, list(filter(is_dip, others))


def changes(before: Mapping[str, Any], after: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns figures of a point relative to another's, as in ``TTFT p95 2.4×, ITL p99 1.1× (within the spread)``."""
    exact = is_exact(before["runs"]) and is_exact(after["runs"])
    rows = [
        figure_row(name, {"A": values_of(before, name), "B": values_of(after, name)}, exact=exact) for name in names
    ]
    return ", ".join(brief(row) for row in rows if row["ratio"] is not None) or "nothing that could be measured"


def figure_text(point: Mapping[str, Any], name: str) -> str:
    """Returns median and range of a figure, as in ``180 ms (170–191)``."""
    found = spread(point, name)
    span = range_text(*found["range"])
    unit = FIGURES[name].unit.removesuffix(" in SLO")
    return f"{number_text(found['median'])} {unit}" + (f" ({span})" if span else "")


def promise_text(point: Mapping[str, Any], name: str, promises: Mapping[str, float]) -> str:
    """Returns a figure with its limit, as in ``TTFT p95 is 180 ms (170–191) of 250``."""
    return f"{FIGURES[name].title} is {figure_text(point, name)} of {number_text(promises[name])}"


def _knee_sentence(points: Points, setting: Varied, limits: Mapping[str, float], kept: Sequence[bool]) -> str:
    """Returns the sentence on the rate or length up to which all keep the promise, and on those that contradict it."""
    place = rate_knee(kept)
    at = points[-1 if place is None else place]
    first, value, last = (value_text(setting, point["value"]) for point in (points[0], at, points[-1]))
    noun = "rate" if setting == RATE else "length"
    promises = {name: limits[limit] for name, limit in PROMISED.items()}

    def said_of(at: Mapping[str, Any], names: Iterable[str]) -> str:
        return " and ".join(promise_text(at, name, promises) for name in names)

    figures = said_of(at, [name for name in PROMISED if spread(at, name)["median"] is not None])
    if place is not None:
        beyond = points[place + 1]
        said = f"The knee is at {value}: every {noun} up to it keeps the promise, {figures} there; "
        said += f"at {value_text(setting, beyond['value'])}, {said_of(beyond, broken(beyond, limits))}."
    elif kept[0]:
        said = f"No knee up to {last}: every {noun} keeps the promise, {figures} at {last}."
    else:
        lowest = "lowest rate" if setting == RATE else "shortest length"
        said = f"No knee from {first} to {last}: the {lowest} breaks the promise, {said_of(points[0], broken(points[0], limits))}."
    lower, higher = overtaken(kept)
    if not higher:
        return said
    keep, do = (
        one if setting == RATE and len(places) == 1 else many
        for places, one, many in ((higher, "keeps", "keep"), (lower, "does", "do"))
    )
    keep = f"{_listed(points, setting, higher)} {keep} the promise"
    return f"{said} The {noun}s disagree: {keep}, but {_listed(points, setting, lower)} {do} not."


def _fall_sentence(points: Points, fall: Fall) -> str:
    """Returns the sentence that a figure does not rise with the rate."""
    low, high = points[fall.low], points[fall.high]
    figures = " and ".join(f"{figure_text(at, fall.figure)} at {value_text(RATE, at['value'])}" for at in (low, high))
    return f"{FIGURES[fall.figure].title} does not rise with the rate throughout: it is {figures}."


def _bend_sentence(points: Points, setting: Varied, latency: str, place: int | None) -> str:
    last, title = points[-1], FIGURES[latency].title
    end = f"{figure_text(last, latency)} at {value_text(setting, last['value'])}"
    if place is None:
        return f"No knee up to {value_text(setting, last['value'])}: {title} is {end}."
    at = points[place]
    return f"The knee is at {value_text(setting, at['value'])}: {title} is {figure_text(at, latency)} there, {end}."


def _listed(points: Points, setting: Varied, places: Sequence[int]) -> str:
    """Returns rates or lengths as a list such as ``57.1, 72.9 and 88.6 req/s``."""
    return f"{listed(number_text(points[place]['value']) for place in places)} {TRAFFIC[setting]}"


def _peak_sentence(points: Points, setting: Varied, peak: int, ties: Sequence[int], dips: Sequence[int]) -> str:
    first, last = (value_text(setting, points[place]["value"]) for place in (0, -1))
    value, runs = value_text(setting, points[peak]["value"]), points[peak]["runs"]
    same = "about the same" if is_exact(runs) and len(runs) == 1 else f"within {spread_text(len(runs))}"
    if not any(values_of(points[peak], "goodput_req_s")):
        return f"No request stays within the limits from {first} to {last}."
    goodput = figure_text(points[peak], "goodput_req_s")
    if len(points) == 1:
        return f"Goodput is {goodput} at {value}."
    if len(ties) == len(points) - 1:
        return f"Goodput is {goodput} at {value}; every other value is {same}."
    at_end = peak in (0, len(points) - 1)
    if not ties and not dips and not at_end:
        return f"Goodput peaks at {value}: {goodput}."
    said = f"Goodput is highest at {value}{', an end of the range' if at_end and not ties else ''}: {goodput}"
    if ties:
        said += f"; {', '.join(value_text(setting, points[place]['value']) for place in ties)}: {same}"
    lower = ", ".join(value_text(setting, points[place]["value"]) for place in dips)
    return f"{said}; it has a dip at {lower}." if dips else f"{said}."


def _off_sentences(points: Points) -> list[str]:
    """Returns a sentence on prompts whose mean length differs from that asked for, as they consist of whole texts."""
    found = [(point["value"], spread(point, "prompt_tokens")["median"]) for point in points]
    off = [(value, mean) for value, mean in found if mean is not None and abs(mean - value) > _OFF * value]
    said = ", ".join(f"{number_text(round(mean))} at {number_text(value)}" for value, mean in off)
    return [f"Prompts consist of whole texts, so their mean lengths differ: {said}."] if off else []


def _wide_sentence(wide: Points, setting: Varied, latency: str, arm: str = "") -> str:
    """Returns the sentence on values whose spread more repeats did not make small enough; ``arm`` comes first."""
    values = [(point, spread_pct(values_of(point, latency))) for point in wide]
    named = ", ".join(f"{value_text(setting, point['value'])} ({number_text(pct)} %)" for point, pct in values)
    return f"{arm}The spread of {FIGURES[latency].title} was still wide after {runs_text(wide)} at {named}."


def _ends_sentence(points: Points, setting: Varied) -> str:
    first, last = (value_text(setting, points[place]["value"]) for place in (0, -1))
    return f"From {first} to {last}: {changes(points[0], points[-1], _CHANGES)}."
