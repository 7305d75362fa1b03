"""The findings of a sweep: the knee, the peak of goodput, where A and B cross, and what contradicts what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, groupby, pairwise

from roseplay.extras.lab.document import SweepResult
from roseplay.extras.lab.findings.finding import Finding, Level, Row, how_measured, rows_between
from roseplay.extras.lab.findings.knee import bend, falls, overtaken, rate_knee
from roseplay.extras.lab.points import (
    LIMITED,
    PROMPT,
    RATE,
    TRAFFIC,
    Points,
    arm_points,
    broken,
    compare,
    is_exact,
    is_small,
    saturated_values,
    spread,
    spread_pct,
    values_of,
)
from roseplay.extras.lab.types import FigureName, Limits, MeasuredPoint, PointRow, Summary, Value, Varied
from roseplay.traffic.difference import Verdict

SHOWN: tuple[FigureName, ...] = ("output_tokens_per_s", "goodput_req_s", "kept_pct", "ttft_p95_ms", "itl_p99_ms")
OF_PREEMPTIONS: tuple[FigureName, ...] = ("preemptions", "recomputed_tokens", "moved_mb")  # shown if any run has them
CROSSED: tuple[FigureName, ...] = ("output_tokens_per_s", "e2e_p99_ms", "ttft_p95_ms", "itl_p99_ms")
_OFF = 0.05  # share by which the mean length of prompts may differ from its value without being mentioned
_CHANGES: tuple[FigureName, ...] = ("output_tokens_per_s", "ttft_p95_ms", "itl_p99_ms", "e2e_p99_ms")


class Crossing(Finding):
    """A figure in A and in B at each value that both have.

    A and B cross between two values with opposite clear verdicts; one within the spread belongs to neither side.
    """

    setting: Varied
    figure: FigureName
    values: list[Value]  # in increasing order
    verdicts: list[Verdict]  # on B at each value
    ratios: list[float | None]
    between: list[list[Value]]  # the pairs of values between which A and B cross
    repeats: int
    exact: bool  # whether repeats would give the same figures

    @property
    def sides(self) -> list[tuple[Verdict, list[int]]]:
        """Returns the successive clear verdicts on B, each with the indices of its values."""
        return _sides(self.verdicts)


class Knee(Finding):
    """The largest rate or prompt length up to which every one keeps the limits."""

    setting: Varied
    first: Value
    last: Value
    knee: Value  # ``None`` if all keep the limits, or if the lowest value does not
    levels: list[Level]  # the figures with limits at the knee, or at the last value if all keep them
    beyond: Value  # the lowest value that exceeds a limit; ``None`` if there is none
    broken: list[Level]  # the figures that exceed their limits there
    keeping: list[Value]  # values that keep the limits although lower ones do not,
    breaking: list[Value]  # and those lower ones


class Bend(Finding):
    """The value of a setting after which latency rises steeply, ``None`` if there is none; and the latency at the end."""

    setting: Varied
    knee: Value
    level: Level | None
    last: Value
    end: Level


class Peak(Finding):
    """The value with the highest goodput."""

    setting: Varied
    first: Value
    last: Value
    value: Value
    level: Level
    count: int  # of values measured
    ties: list[Value]  # values that are not clearly below it
    dips: list[Value]  # values that are clearly lower than one farther from the peak
    repeats: int
    exact: bool  # whether repeats would give the same figures

    @property
    def at_end(self) -> bool:
        return self.value in (self.first, self.last)

    @property
    def clear(self) -> bool:
        """Whether goodput rises up to there and falls afterwards; beyond the ends it may be higher."""
        return not self.ties and not self.dips and not self.at_end


class Ends(Finding):
    """How figures at the last value differ from those at the first."""

    setting: Varied
    first: Value
    last: Value
    rows: list[Row]


class Falling(Finding):
    """A latency that is clearly lower at a higher rate, which load cannot explain."""

    low: Value
    high: Value
    levels: list[Level]


class PromptLengths(Finding):
    """Values from which the mean length of the prompts differs, as they consist of whole texts; and that length."""

    off: list[tuple[float, float]]


class WideValues(Finding):
    """Values whose spread more repeats did not make small enough: (value, spread in percent, runs)."""

    setting: Varied
    figure: FigureName
    values: list[tuple[Value, float | None, int]]


def sweep_findings(document: SweepResult) -> tuple[Summary, list[Finding]]:
    """Returns the ``summary`` of a sweep, derived from its points and limits, and its findings."""
    setting, of_arms = document["setting"], arm_points(document)
    latency, two = latency_of(setting), "B" in of_arms
    runs = [run for points in of_arms.values() for point in points for run in point["runs"]]
    shown = [*SHOWN, *(name for name in OF_PREEMPTIONS if any(run[name] for run in runs))]
    arms = {arm: _of_arm(document, points, shown) for arm, points in of_arms.items()}
    points, whose = of_arms["A"], {arm: arm if two else "" for arm in arms}
    findings: list[Finding] = [crossing(setting, name, points, of_arms["B"]) for name in CROSSED] if two else []
    findings += [replace(finding, arm=whose[arm]) for arm, (_, of_arm) in arms.items() for finding in of_arm]
    if not two and len(points) > 1:
        first, last = points[0], points[-1]
        findings.append(Ends(setting, first["value"], last["value"], rows_between(first, last, _CHANGES)))
    if not two and setting == RATE and (fallen := falls(points)):
        fall = max(fallen, key=lambda fall: fall.ratio)
        low, high = points[fall.low], points[fall.high]
        levels = [Level.of(point, fall.figure) for point in (low, high)]
        findings.append(Falling(low["value"], high["value"], levels))
    if setting == PROMPT and (off := _off(points)):
        findings.append(PromptLengths(off))
    summary: Summary = {**arms["A"][0], "latency": latency}
    if two:
        summary["b"] = arms["B"][0]
    if (most := document.get("max_spread_pct")) is not None:
        wide = {arm: _wide(setting, points, most) for arm, points in of_arms.items()}
        summary["spread"] = {"figure": latency, "reached": not any(wide.values())}
        findings += [WideValues(setting, latency, values, arm=whose[arm]) for arm, values in wide.items() if values]
    saturated = dict.fromkeys(chain.from_iterable(map(saturated_values, of_arms.values())))
    return summary, [*findings, *how_measured(document, values=list(saturated))]


def crossing(setting: Varied, figure: FigureName, a_points: Points, b_points: Points) -> Crossing:
    """Returns where a figure of A and of B crosses."""
    both = list(zip(a_points, b_points, strict=False))  # a sweep that was stopped has fewer values of B
    differences = [compare(a, b, figure) for a, b in both]
    values, verdicts = [a["value"] for a, _ in both], [difference.verdict for difference in differences]
    between = [[values[low[-1]], values[high[0]]] for (_, low), (_, high) in pairwise(_sides(verdicts))]
    exact = all(is_exact(point["runs"]) for points in both for point in points)
    repeats = max((difference.repeats for difference in differences), default=0)
    return Crossing(
        setting, figure, values, verdicts, [difference.ratio for difference in differences], between, repeats, exact
    )


def _sides(verdicts: list[Verdict]) -> list[tuple[Verdict, list[int]]]:
    clear = [place for place, verdict in enumerate(verdicts) if verdict in ("better", "worse")]
    return [(verdict, list(places)) for verdict, places in groupby(clear, verdicts.__getitem__)]


def _of_arm(document: SweepResult, points: Points, shown: Sequence[FigureName]) -> tuple[Summary, list[Finding]]:
    """Returns the points of an arm with their figures, knee and peak; and the findings about these two."""
    setting, limits = document["setting"], document["limits"]
    rows: list[PointRow] = [
        {
            "value": point["value"],
            "requests": point["requests"],
            "kept": not broken(point, limits),
            "runs": len(point["runs"]),
            "figures": {name: spread(point, name) for name in shown},
        }
        for point in points
    ]
    knee = _knee(setting, points, limits) if setting in TRAFFIC else _bend(setting, points)
    place = None if knee.knee is None else [point["value"] for point in points].index(knee.knee)
    at, ties, dips = goodput_peak(points)
    runs = points[at]["runs"]
    peak = Peak(
        setting=setting,
        first=points[0]["value"],
        last=points[-1]["value"],
        value=points[at]["value"],
        level=Level.of(points[at], "goodput_req_s"),
        count=len(points),
        ties=[points[place]["value"] for place in ties],
        dips=[points[place]["value"] for place in dips],
        repeats=len(runs),
        exact=is_exact(runs),
    )
    return {"points": rows, "knee": place, "peak": at if peak.clear else None}, [knee, peak]


def latency_of(setting: Varied) -> FigureName:
    """Returns the latency figure that matters in a sweep of this setting."""
    return "ttft_p95_ms" if setting in TRAFFIC else "itl_p99_ms"


def goodput_peak(points: Points) -> tuple[int, list[int], list[int]]:
    """Returns the index of the highest goodput, and those of the ``ties`` and ``dips`` of ``Peak``."""
    medians = [spread(point, "goodput_req_s")["median"] or 0.0 for point in points]
    peak = max(range(len(points)), key=medians.__getitem__)
    others = [place for place in range(len(points)) if place != peak]
    ties = [place for place in others if not compare(points[peak], points[place], "goodput_req_s").clear]

    def is_dip(place: int) -> bool:
        farther = points[:place] if place < peak else points[place + 1 :]
        return any(compare(points[place], other, "goodput_req_s").verdict == "better" for other in farther)

    return peak, ties, list(filter(is_dip, others))


def _knee(setting: Varied, points: Points, limits: Limits) -> Knee:
    kept = [not broken(point, limits) for point in points]
    place, lowest = rate_knee(kept), kept.index(False) if False in kept else None
    at = points[place] if place is not None else points[-1] if lowest is None else None
    beyond = None if lowest is None else points[lowest]
    lower, higher = overtaken(kept)

    def levels(point: MeasuredPoint | None, names: Sequence[FigureName]) -> list[Level]:
        return [] if point is None else [Level.of(point, name, limits[LIMITED[name]]) for name in names]

    return Knee(
        setting=setting,
        first=points[0]["value"],
        last=points[-1]["value"],
        knee=None if place is None else points[place]["value"],
        levels=[level for level in levels(at, list(LIMITED)) if level.median is not None],
        beyond=None if beyond is None else beyond["value"],
        broken=[] if beyond is None else levels(beyond, broken(beyond, limits)),
        keeping=[points[place]["value"] for place in higher],
        breaking=[points[place]["value"] for place in lower],
    )


def _bend(setting: Varied, points: Points) -> Bend:
    latency, last = latency_of(setting), points[-1]
    place = bend(points, latency)
    at = None if place is None else points[place]
    value, level = (None, None) if at is None else (at["value"], Level.of(at, latency))
    return Bend(setting, value, level, last["value"], Level.of(last, latency))


def _off(points: Points) -> list[tuple[float, float]]:
    means = [(point["value"], spread(point, "prompt_tokens")["median"]) for point in points]
    return [(value, mean) for value, mean in means if value and mean is not None and abs(mean - value) > _OFF * value]


def _wide(setting: Varied, points: Points, most: float) -> list[tuple[Value, float | None, int]]:
    named = [(point["value"], values_of(point, latency_of(setting))) for point in points]
    return [(value, spread_pct(values), len(values)) for value, values in named if not is_small(values, most)]
