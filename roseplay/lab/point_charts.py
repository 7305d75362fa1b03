"""The charts of a sweep or a search in a report: curves with ranges and limits, or tries by number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from roseplay.config import Knobs
from roseplay.formats.report_page import COLOURS, figure
from roseplay.lab.comparison_charts import ARM_LINES
from roseplay.lab.points import KNOBS, LIMITED, PROMPT, RATE, arm_points, spread
from roseplay.lab.words import plain_value, value_text
from roseplay.settings import settings_of
from roseplay.traffic.run_figures import FIGURES

if TYPE_CHECKING:
    import plotly.graph_objects as go

_FAR = 1.5  # a limit is drawn up to this ratio above the data: farther up it would flatten the data
_HEADROOM = 1.08
_BESIDE = 0.1  # of a decade, on both sides of the values
_MOST_TICKS = 12
_BEYOND = 2  # no limit is drawn at as many times the largest value
VALUE_AXIS = {
    RATE: "rate, requests/s",
    PROMPT: "prompt tokens",
    **{name: settings_of(Knobs)[name].label.lower() for name in KNOBS},
}

Document = Mapping[str, Any]
Points = Sequence[Mapping[str, Any]]
Drawn = tuple[str, str, Any]  # title, description, chart
Known = Sequence[tuple[Mapping[str, Any], Any, Any]]


def point_charts(document: Document) -> list[Drawn]:
    """Returns (title, description, chart) for each chart."""
    return _sweep_charts(document) if document["kind"] == "sweep" else _find_charts(document)


def _sweep_charts(document: Document) -> list[Drawn]:
    against = "output_tokens_per_s" if document["setting"] == RATE else None
    sub = "against throughput, a point for each rate" if against else "against the value"
    summary, drawn = document["summary"], []
    for name in LIMITED:
        chart = _sweep_chart(document, name, against, "knee" if summary["latency"] == name else None)
        _level(chart, document["limits"][LIMITED[name]])
        drawn.append((FIGURES[name].title, sub, chart))
    chart = _sweep_chart(document, "goodput_req_s", None, "peak")
    return [*drawn, ("Goodput", "requests/s within both limits", chart)]


def _sweep_chart(document: Document, name: str, against: str | None, ringed: str | None) -> go.Figure:
    """Returns the curve of a figure in each arm, with a ring around the ``knee`` or the ``peak`` if there is one."""
    setting, summary, of_arms = document["setting"], document["summary"], arm_points(document)
    chart = _axes(document, [point for points in of_arms.values() for point in points], name, against)
    for arm, points in of_arms.items():
        known, line = _known(points, name, against), ARM_LINES[arm]
        chart.add_scatter(
            **_values(known),
            error_x=_bars([x for _, x, _ in known]) if against else None,
            text=[value_text(setting, point["value"]) for point, _, _ in known],
            hovertemplate="%{text}: %{y:.4g}<extra></extra>",
            mode="lines+markers",
            line=line,
            marker={"color": line["color"], "size": 6},
            name=arm,
            showlegend=len(of_arms) > 1,
        )
    for arm, points in of_arms.items():
        place = (summary if arm == "A" else summary["b"])[ringed] if ringed else None
        for point, x, y in [] if place is None else _known([points[place]], name, against):
            of = f" of {arm}" if len(of_arms) > 1 else ""
            chart.add_scatter(
                x=[x["median"]],
                y=[y["median"]],
                mode="markers",
                hoverinfo="skip",
                marker={"symbol": "circle-open", "size": 16, "color": COLOURS["rose"], "line": {"width": 2}},
                name=f"{ringed}{of} at {value_text(setting, point['value'])}",
            )
    return chart


def _find_charts(document: Document) -> list[Drawn]:
    rows, drawn = document["summary"]["points"], []
    far = _BEYOND * max(value for value in document["grid"] if value is not None)
    points = [{**point, "value": far} if point["value"] is None else point for point in document["points"]]
    for name, limit in LIMITED.items():
        chart = _axes(document, points, name, None)
        if points[0]["value"] == far:
            chart.layout.xaxis.ticktext = [*chart.layout.xaxis.ticktext[:-1], plain_value(None)]
        tries = list(enumerate(zip(points, rows, strict=True), 1))
        for kept in (True, False):
            _tries(chart, {number: point for number, (point, row) in tries if row["kept"] == kept}, name, kept)
        _level(chart, document["limits"][limit])
        drawn.append((FIGURES[name].title, "tries by number; filled: both limits kept, hollow: one exceeded", chart))
    return drawn


def _tries(chart: go.Figure, points: Mapping[int, Mapping[str, Any]], name: str, kept: bool) -> None:
    """Draw tries by number."""
    fill, ink = (COLOURS["ink"], COLOURS["surface"]) if kept else (COLOURS["surface"], COLOURS["ink"])
    known = {number: found for number, point in points.items() for found in _known([point], name, None)}
    chart.add_scatter(
        **_values(list(known.values())),
        text=[str(number) for number in known],
        hovertemplate="%{x}: %{y:.4g} ms<extra></extra>",
        mode="markers+text",
        textfont={"color": ink, "size": 10},
        marker={"color": fill, "size": 16, "line": {"color": COLOURS["ink"], "width": 1.5}},
        name="kept" if kept else "exceeded",
        showlegend=bool(known),
    )


def _axes(document: Document, points: Points, name: str, against: str | None) -> go.Figure:
    """Returns an empty chart of a figure against another one, or against the value."""
    x = f"{FIGURES[against].title}, {FIGURES[against].unit}" if against else VALUE_AXIS[document["setting"]]
    chart = figure(x, FIGURES[name].unit)
    highs = [high for point in points if (high := spread(point, name)["range"][1]) is not None]
    chart.update_yaxes(range=[0, _HEADROOM * max(highs, default=0) or 1])
    if against or (document["setting"] == RATE and not document.get("doubles")):
        chart.update_xaxes(rangemode="tozero")
        return chart
    values = sorted({point["value"] for point in points})
    ends = [math.log10(values[0]) - _BESIDE, math.log10(values[-1]) + _BESIDE]
    chart.update_xaxes(type="log", tickvals=values, ticktext=_tick_words(values), range=ends, rangemode=None)
    return chart


def _tick_words(values: Sequence[float]) -> list[str]:
    """Returns the labels of ticks on a logarithmic axis; empty where they would overlap the previous one."""
    least = (values[-1] / values[0]) ** (1 / _MOST_TICKS)
    words, last = [], 0.0
    for value in values:
        words.append(f"{value:g}" if not last or value / last >= least else "")
        last = value if words[-1] else last
    return words


def _known(points: Points, name: str, against: str | None) -> Known:
    """Returns the points whose figures could be measured, with their spreads on both axes."""
    exact = ({"median": point["value"], "range": [point["value"]] * 2} for point in points)
    across = (spread(point, against) for point in points) if against else exact
    found = zip(points, across, (spread(point, name) for point in points), strict=True)
    return [one for one in found if None not in (one[1]["median"], one[2]["median"])]


def _bars(spreads: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [one["range"][1] - one["median"] for one in spreads],
        "arrayminus": [one["median"] - one["range"][0] for one in spreads],
        "color": COLOURS["ink3"],
        "thickness": 1,
        "width": 3,
    }


def _values(known: Known) -> dict[str, Any]:
    """Returns a trace's arguments that show medians, and the ranges of its figure."""
    return {
        "x": [x["median"] for _, x, _ in known],
        "y": [y["median"] for _, _, y in known],
        "error_y": _bars([y for _, _, y in known]),
    }


def _level(chart: go.Figure, level: float) -> None:
    """Draw a limit as a line across the chart, with its label in the legend, where it covers nothing.

    A line so far above the data that they would look flat gets only a label.
    """
    top = chart.layout.yaxis.range[1]
    near = level <= _FAR * top
    name = f"limit {level:g}" + ("" if near else ", above the chart")
    line = {"dash": "dot", "width": 1.25, "color": COLOURS["ink3"]}
    # A legend lists only traces, so an empty one represents the line.
    chart.add_scatter(x=[None], y=[None], mode="lines", line=line, name=name, showlegend=True)
    if near:
        chart.add_hline(y=level, line=line)
        chart.update_yaxes(range=[0, max(top, _HEADROOM * level)])
