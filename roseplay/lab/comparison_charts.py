"""The charts of a comparison in a report: ITL and TTFT in both arms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from roseplay.formats.report_page import COLOURS, figure, log_axis, words_above
from roseplay.lab.document import ARMS

if TYPE_CHECKING:
    import plotly.graph_objects as go

# A is a solid line in ink, B a dashed one in rose, as on the page.
ARM_LINES = {
    "A": {"color": COLOURS["ink"], "width": 1.75},
    "B": {"color": COLOURS["rose"], "width": 1.75, "dash": "6px 4px"},
}
_TAIL_TICKS = (0, 50, 90, 99, 99.9, 99.99)


def comparison_charts(document: Mapping[str, Any]) -> list[tuple[str, str, go.Figure]]:
    """Returns (title, description, chart) for each chart."""
    return [
        ("Inter-token latency", "share of pauses at most this long, both axes logarithmic", _itl_tail(document)),
        ("Time to first token", "share of requests", _ttft_cdf(document)),
    ]


def _pooled(document: Mapping[str, Any], arm: str, key: str) -> list[float]:
    runs = [run for run in document["runs"] if run["arm"] == arm]
    if key == "itl_ms":
        return sorted(gap for run in runs for gap in run["itl_ms"] if gap)
    return sorted(r[key] for run in runs for r in run["requests"] if r[key] is not None)


def _itl_tail(document: Mapping[str, Any]) -> go.Figure:
    """Draw the percentiles of gaps on a scale of -log10(1 - p), which includes the worst gap."""
    chart = figure("ms", "share of gaps")
    top = 1.0
    known: list[float] = []
    for arm in ARMS:
        gaps = _pooled(document, arm, "itl_ms")
        heights = [-math.log10(1 - index / (len(gaps) + 1)) for index in range(1, len(gaps) + 1)]
        top, known = max([top, *heights[-1:]]), [*known, *gaps[:1], *gaps[-1:]]
        chart.add_scatter(x=_thinned(gaps), y=_thinned(heights), name=arm, line={**ARM_LINES[arm], "shape": "hv"})
    ticks = [percent for percent in _TAIL_TICKS if -math.log10(1 - percent / 100) <= top]
    limit = document["limits"]["itl_ms"]
    log_axis(chart, "xaxis", max(0.01, min(known, default=1)), max([*known, limit, 10]))
    chart.update_yaxes(
        tickvals=[-math.log10(1 - percent / 100) for percent in ticks],
        ticktext=["0" if not percent else f"p{percent:g}" for percent in ticks],
    )
    _limit(chart, limit, math.log10(limit))
    return chart


def _ttft_cdf(document: Mapping[str, Any]) -> go.Figure:
    chart = figure("ms", "share of requests")
    for arm in ARMS:
        times = _pooled(document, arm, "ttft_ms")
        shares = [100 * index / len(times) for index in range(1, len(times) + 1)]
        chart.add_scatter(x=_thinned(times), y=_thinned(shares), name=arm, line={**ARM_LINES[arm], "shape": "hv"})
    chart.update_yaxes(range=[0, 101], ticksuffix="\u202f%")
    _limit(chart, document["limits"]["ttft_ms"], document["limits"]["ttft_ms"])
    return chart


def _limit(chart: go.Figure, limit: float, x: float) -> None:
    """Draw a limit as a line; ``x`` is its position on the axis (the exponent on a logarithmic one)."""
    chart.add_vline(x=limit, line={"dash": "dot", "width": 1, "color": COLOURS["ink3"]})
    words_above(chart, f"limit {limit:g}", x=x, xref="x")


def _thinned(values: list[float], most: int = 2000) -> list[float]:
    """Returns about ``most`` points of a curve, with its whole sparse tail."""
    if len(values) <= most:
        return values
    tail = most // 2
    step = math.ceil((len(values) - tail) / tail)
    return values[:-tail:step] + values[-tail:]
