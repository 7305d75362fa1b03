"""The measured values of a sweep or a search: their figures, and their names in text."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from roseplay.config import Knobs
from roseplay.formats.numbers import number_text
from roseplay.lab.document import RunFigures
from roseplay.lab.experiment import Experiment, Point, Value, Varied
from roseplay.lab.load import Load
from roseplay.lab.simulated_text import is_exact
from roseplay.lab.summary import MEASURES, keeps
from roseplay.settings import settings_of
from roseplay.traffic.difference import Difference, difference
from roseplay.traffic.run_figures import FIGURES

RATE: Varied = "rate_per_s"
PROMPT: Varied = "prompt_tokens"
TRAFFIC: Mapping[Varied, str] = {RATE: "req/s", PROMPT: "prompt tokens"}  # varied by other traffic -> their units
KNOBS: tuple[Varied, ...] = ("prefill_max_tokens", "max_batch_size")
MAX_VALUE = 1_000_000
FIGURES_OF_A_RUN = [name for name in MEASURES if name in RunFigures.__annotations__]


def point_at(experiment: Experiment, setting: Varied, value: Value, load: Load, arm: str = "A") -> Point:
    """Returns the point of an arm at which the experiment's setting has this value."""
    label, knobs = value_text(setting, value), experiment.arms[arm].knobs
    if len(experiment.arms) > 1:
        label = f"{arm}, {label}"
    if setting not in TRAFFIC:
        knobs = knobs.changed({setting: value})
    return Point(label=label, title=label, arm=arm, knobs=knobs, load=load, value=value)


def of_point(point: Point) -> dict[str, Any]:
    """Returns a point in the result's format."""
    return {"value": point.value, "requests": point.load.scenario.num_requests, "runs": list(point.runs)}


def arm_points(document: Mapping[str, Any]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Returns the points of each arm that a sweep has measured."""
    names = {"A": "points", "B": "b_points"}
    return {arm: document[names[arm]] for arm in document["arms"]}


def value_text(setting: Varied, value: Value) -> str:
    """Returns a value's name in sentences, such as ``6 req/s`` or ``prefill budget 64``."""
    if setting in TRAFFIC:
        return f"{number_text(value)} {TRAFFIC[setting]}"
    label = settings_of(Knobs)[setting].label.lower()
    return f"no {label}" if value is None else f"{label} {plain_value(value)}"


def plain_value(value: Value) -> str:
    """Returns a value as text, without the setting's name and unit."""
    return "unlimited" if value is None else number_text(value)


def values_of(point: Mapping[str, Any], figure: str) -> list[float | None]:
    """Returns a figure of a point in each repeat."""
    return [run[figure] for run in point["runs"]]


def compare(a: Mapping[str, Any], b: Mapping[str, Any], figure: str) -> Difference:
    """Returns how a figure of point ``b`` differs from that of ``a``."""
    exact = is_exact(a["runs"]) and is_exact(b["runs"])
    return difference(values_of(a, figure), values_of(b, figure), better=FIGURES[figure].better, exact=exact)


def runs_text(points: Iterable[Mapping[str, Any]]) -> str:
    """Returns the points' numbers of runs in words, as in ``3 to 9 runs``."""
    counts = sorted({len(point["runs"]) for point in points})
    return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) + (" run" if counts == [1] else " runs")


def verdict_text(row: Mapping[str, Any]) -> str:
    """Returns the verdict on a summary's row for a table, as in ``kept, not sure``; a sweep's rows count as sure."""
    return ("kept" if row["kept"] else "broken") + ("" if row.get("sure", True) else ", not sure")


def spread(point: Mapping[str, Any], figure: str) -> dict[str, Any]:
    """Returns median and range of a figure over the repeats; ``None`` for both if it could not be measured."""
    known = [value for value in values_of(point, figure) if value is not None]
    if not known:
        return {"median": None, "range": [None, None]}
    return {"median": round(statistics.median(known), 4), "range": [min(known), max(known)]}


def figures(run: Mapping[str, Any], limits: Mapping[str, float]) -> dict[str, float | bool | None]:
    """Returns the figures of a run.

    ``kept_pct`` is the share of requests within the limits, ``prompt_tokens`` the mean length of the prompts.
    """
    kept = sum(keeps(request, limits) for request in run["requests"])
    found = {name: MEASURES[name](run, limits) for name in FIGURES_OF_A_RUN}
    found["kept_pct"] = 100 * kept / len(run["requests"])
    found["prompt_tokens"] = statistics.fmean(request["prompt_tokens"] for request in run["requests"])
    rounded = {name: None if value is None else round(value, 4) for name, value in found.items()}
    return {**rounded, "saturated": run["saturated"]} if "saturated" in run else rounded


def misses(point: Mapping[str, Any], promises: Mapping[str, float]) -> dict[str, float]:
    """Returns by what share of the limit a point's median exceeds each promise that it breaks."""
    medians = {name: spread(point, name)["median"] for name in promises}
    return {
        name: value / promises[name] - 1
        for name, value in medians.items()
        if value is not None and value > promises[name]
    }


def worst_miss(point: Mapping[str, Any], promises: Mapping[str, float]) -> str:
    """Returns the promise that a point misses by most, as in ``ITL p99 by 12.5 %``; it misses one at least."""
    found = misses(point, promises)
    name = max(found, key=found.__getitem__)
    return f"{FIGURES[name].title} by {number_text(round(100 * found[name], 1))} %"
