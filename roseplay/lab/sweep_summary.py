"""What a sweep shows: its figures with their ranges, the knee, the peak of goodput, and sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from roseplay.lab.points import RATE, Varied, runs_text, spread, value_text, values_of
from roseplay.lab.sentences import brief
from roseplay.lab.spread import is_small, spread_pct
from roseplay.lab.summary import figure_row
from roseplay.texts import number_text, range_text
from roseplay.traffic.difference import difference, spread_text
from roseplay.traffic.figures import FIGURES

SHOWN = ("output_tokens_per_s", "goodput_req_s", "kept_pct", "ttft_p95_ms", "itl_p99_ms")
LEAST_KNEE = 0.2  # how far a knee lies below the straight line, as a share of the latency's range
_CHANGES = ("output_tokens_per_s", "ttft_p95_ms", "itl_p99_ms", "e2e_p99_ms")

Points = Sequence[Mapping[str, Any]]


def sweep_summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ``summary`` of a sweep, which follows from its points and limits.

    Each point has median and range of its figures, and whether the promise is kept: median TTFT p95 and ITL p99 within
    the limits. ``knee`` and ``peak`` are places in ``points``; ``None`` for no knee, or for no
    clear peak within the range.
    """
    points, setting, limits = document["points"], document["setting"], document["limits"]
    rows = [
        {
            "value": point["value"],
            "requests": point["requests"],
            "kept": _kept(point, limits),
            "runs": len(point["runs"]),
            "figures": {name: spread(point, name) for name in SHOWN},
        }
        for point in points
    ]
    latency = latency_of(setting)
    bend = knee(points, latency, by_factors=setting != RATE)
    peak, ties = goodput_peak(points)
    clear = not ties and 0 < peak < len(points) - 1
    said = [_knee_sentence(points, setting, latency, bend), _peak_sentence(points, setting, peak, ties)]
    if len(points) > 1:
        said.append(_ends_sentence(points, setting))
    found: dict[str, Any] = {
        "points": rows,
        "knee": bend,
        "peak": peak if clear else None,
        "latency": latency,
        "sentences": said,
    }
    most = document.get("max_spread_pct")
    if most is not None:
        wide = [point for point in points if not is_small(values_of(point, latency), most)]
        found["spread"] = {"figure": latency, "reached": not wide}
        said += [_wide_sentence(wide, setting, latency)] if wide else []
    return found


def latency_of(setting: Varied) -> str:
    """Returns the latency that a sweep of this setting is about."""
    return "ttft_p95_ms" if setting == RATE else "itl_p99_ms"


def knee(points: Points, latency: str, *, by_factors: bool = False) -> int | None:
    """Returns the place of the point after which latency rises most steeply, if there is one.

    The definition is that of Satopää, Albrecht, Irwin and Raghavan, "Finding a 'Kneedle' in a Haystack" (2011), for a
    rising convex curve: with value and latency scaled to 0 to 1, the point farthest below the straight line. Noise has
    such a point too. It is a knee only if it lies ``LEAST_KNEE`` below the line, and latency at the last point is
    clearly worse there than at the knee by ``traffic.difference``.

    Args:
        latency: name of the figure; its medians over the repeats are used.
        by_factors: scale the logarithm of the values, as they are spaced.
    """
    known = [place for place, point in enumerate(points) if spread(point, latency)["median"] is not None]
    if len(known) < 3:
        return None
    x = [points[place]["value"] for place in known]
    x = [math.log(value) for value in x] if by_factors else x
    y = [spread(points[place], latency)["median"] for place in known]
    height = max(y) - min(y)
    if not height or y[-1] <= y[0]:
        return None
    below = [(a - x[0]) / (x[-1] - x[0]) - (b - min(y)) / height for a, b in zip(x, y, strict=True)]
    best = max(range(len(below)), key=below.__getitem__)
    place = known[best]
    found = difference(values_of(points[place], latency), values_of(points[known[-1]], latency), better="lower")
    return place if below[best] >= LEAST_KNEE and found.verdict == "worse" else None


def goodput_peak(points: Points) -> tuple[int, list[int]]:
    """Returns the place of the highest goodput, and the places that are not clearly below it."""
    medians = [spread(point, "goodput_req_s")["median"] or 0.0 for point in points]
    peak = max(range(len(points)), key=medians.__getitem__)
    best = values_of(points[peak], "goodput_req_s")
    ties = [
        place
        for place, point in enumerate(points)
        if place != peak and not difference(best, values_of(point, "goodput_req_s"), better="higher").clear
    ]
    return peak, ties


def changes(before: Mapping[str, Any], after: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns figures of one point against those of another, as in ``TTFT p95 2.4×, ITL p99 1.1× (within the spread)``."""
    rows = [figure_row(name, {"A": values_of(before, name), "B": values_of(after, name)}) for name in names]
    return ", ".join(brief(row) for row in rows if row["ratio"] is not None) or "nothing that could be measured"


def figure_text(point: Mapping[str, Any], name: str) -> str:
    """Returns median and range of a figure, as in ``180 ms (170–191)``."""
    found = spread(point, name)
    span = range_text(*found["range"])
    unit = FIGURES[name].unit.removesuffix(" in SLO")
    return f"{number_text(found['median'])} {unit}" + (f" ({span})" if span else "")


def _kept(point: Mapping[str, Any], limits: Mapping[str, float]) -> bool:
    ttft, itl = (spread(point, name)["median"] for name in ("ttft_p95_ms", "itl_p99_ms"))
    return ttft is not None and ttft <= limits["ttft_ms"] and (itl is None or itl <= limits["itl_ms"])


def _knee_sentence(points: Points, setting: Varied, latency: str, place: int | None) -> str:
    last, title = points[-1], FIGURES[latency].title
    end = f"{figure_text(last, latency)} at {value_text(setting, last['value'])}"
    if place is None:
        return f"No knee up to {value_text(setting, last['value'])}: {title} is {end}."
    at = points[place]
    return f"The knee is at {value_text(setting, at['value'])}: {title} is {figure_text(at, latency)} there, {end}."


def _peak_sentence(points: Points, setting: Varied, peak: int, ties: Sequence[int]) -> str:
    first, last = (value_text(setting, points[place]["value"]) for place in (0, -1))
    value, repeats = value_text(setting, points[peak]["value"]), len(points[peak]["runs"])
    if not any(values_of(points[peak], "goodput_req_s")):
        return f"No request keeps the limits from {first} to {last}."
    goodput = figure_text(points[peak], "goodput_req_s")
    if len(points) == 1:
        return f"Goodput is {goodput} at {value}."
    if len(ties) == len(points) - 1:
        return f"Goodput is {goodput} at {value}; every other value is within {spread_text(repeats)}."
    if not ties and 0 < peak < len(points) - 1:
        return f"Goodput peaks at {value}: {goodput}."
    if not ties:  # there may be more beyond
        return f"Goodput is highest at {value}, an end of the range: {goodput}."
    others = ", ".join(value_text(setting, points[place]["value"]) for place in ties)
    return f"Goodput is highest at {value}: {goodput}; {others}: within {spread_text(repeats)}."


def _wide_sentence(wide: Points, setting: Varied, latency: str) -> str:
    """Says at which values more repeats did not make the spread as small as asked for."""
    values = [(point, spread_pct(values_of(point, latency))) for point in wide]
    named = ", ".join(f"{value_text(setting, point['value'])} ({number_text(pct)} %)" for point, pct in values)
    return f"The spread of {FIGURES[latency].title} was still wide after {runs_text(wide)} at {named}."


def _ends_sentence(points: Points, setting: Varied) -> str:
    first, last = (value_text(setting, points[place]["value"]) for place in (0, -1))
    return f"From {first} to {last}: {changes(points[0], points[-1], _CHANGES)}."
