"""A result as one self-contained HTML file: curves, table, settings, environment, sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from roseplay.config import GPU_KNOBS
from roseplay.formats.report_page import COLOURS, charts, figure, heading, log_axis, report_page, table, words_above
from roseplay.formats.text import number_text, range_text, ratio_text, setting_text
from roseplay.lab.sentences import VERDICTS
from roseplay.lab.spec import ARMS

if TYPE_CHECKING:
    import plotly.graph_objects as go

# A is a solid line in ink, B a dashed one in rose, as on the page.
_LINES = {
    "A": {"color": COLOURS["ink"], "width": 1.75},
    "B": {"color": COLOURS["rose"], "width": 1.75, "dash": "6px 4px"},
}
_HEADS = ("A", '<span class="b">B</span>')
_TAIL_TICKS = (0, 50, 90, 99, 99.9, 99.99)


def result_report(document: Mapping[str, Any]) -> str:
    """Returns the report of a checked document that has its summary."""
    itl, ttft = charts((_itl_tail(document), _ttft_cdf(document)))
    parts = [
        *opening(document, _about(document)),
        *(heading("Inter-token latency", "gaps at most this long, both axes on a logarithm"), itl),
        *(heading("Time to first token", "share of requests"), ttft),
        *(heading("Result"), table(metric_rows(document), ("figure", *_HEADS, "B / A", "B is"))),
        *(heading("Settings"), _settings(document)),
        *origin(document),
    ]
    return report_page(f"{document['title']}: A and B", parts)


def opening(document: Mapping[str, Any], about: str) -> list[str]:
    """Returns the head of a report of any result: its title, what was run, and its sentences."""
    return [
        f"<h1>{escape(document['title'])}</h1>",
        f'<p class="quiet">{escape(about)}</p>',
        "<ol>" + "".join(f"<li>{escape(line)}</li>" for line in document["summary"]["sentences"]) + "</ol>",
    ]


def origin(document: Mapping[str, Any]) -> list[str]:
    """Returns the traffic and the environment of any result."""
    seconds = {"seconds": document["seconds"]} if "seconds" in document else {}
    return [
        heading("Traffic and environment"),
        pairs({"scenario": document["scenario"], "seed": document["seed"], **seconds, **document["params"]}),
        pairs({"created": document["created"], **document["environment"]}),
    ]


def _about(document: Mapping[str, Any]) -> str:
    limits, order = document["limits"], " ".join(document["order"])
    name = f"{document['name']}. " if document["name"] else ""
    return (
        f"{name}{document['model']} on {document['device']}, {document['dtype']}. {document['repeats']} runs an arm, in the"
        f" order {order}; medians, beside them the lowest and highest. Promise: TTFT at most {limits['ttft_ms']:g} ms and"
        f" each request's own p99 ITL at most {limits['itl_ms']:g} ms."
    )


def _pooled(document: Mapping[str, Any], arm: str, key: str) -> list[float]:
    runs = [run for run in document["runs"] if run["arm"] == arm]
    if key == "itl_ms":
        return sorted(gap for run in runs for gap in run["itl_ms"])
    return sorted(r[key] for run in runs for r in run["requests"] if r[key] is not None)


def _itl_tail(document: Mapping[str, Any]) -> go.Figure:
    """Percentiles on a scale of -log10(1 - p), which includes the worst gap."""
    chart = figure("ms", "share of gaps")
    top = 1.0
    known: list[float] = []
    for arm in ARMS:
        gaps = _pooled(document, arm, "itl_ms")
        heights = [-math.log10(1 - index / (len(gaps) + 1)) for index in range(1, len(gaps) + 1)]
        top, known = max([top, *heights[-1:]]), [*known, *gaps[:1], *gaps[-1:]]
        chart.add_scatter(x=_thinned(gaps), y=_thinned(heights), name=arm, line={**_LINES[arm], "shape": "hv"})
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
        chart.add_scatter(x=_thinned(times), y=_thinned(shares), name=arm, line={**_LINES[arm], "shape": "hv"})
    chart.update_yaxes(range=[0, 101], ticksuffix=" %")
    _limit(chart, document["limits"]["ttft_ms"], document["limits"]["ttft_ms"])
    return chart


def _limit(chart: go.Figure, limit: float, x: float) -> None:
    """Add the line of a limit; ``x`` is its place on the axis, on a logarithmic one the exponent."""
    chart.add_vline(x=limit, line={"dash": "dot", "width": 1, "color": COLOURS["ink3"]})
    words_above(chart, f"limit {limit:g}", x=x, xref="x")


def _thinned(values: list[float], most: int = 2000) -> list[float]:
    """Returns about ``most`` points of a curve; its sparse tail is kept whole."""
    if len(values) <= most:
        return values
    tail = most // 2
    step = math.ceil((len(values) - tail) / tail)
    return values[:-tail:step] + values[-tail:]


def metric_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """Returns the cells of the result's table, as HTML: figure, A, B, their ratio, and the verdict."""
    rows = []
    for row in document["summary"]["metrics"]:
        better = {"better": "b", "worse": "a"}.get(row["verdict"])
        cells = [escape(f"{row['title']} {row['unit']}".strip())]
        for side in ("a", "b"):
            mark = ' class="better"' if better == side else ""
            spread = range_text(*row[f"{side}_range"])
            cells.append(f'<span{mark}>{number_text(row[side])}</span> <span class="quiet">{spread}</span>')
        cells += [ratio_text(row["ratio"]), VERDICTS[row["verdict"]]]
        rows.append(cells)
    return rows


def _settings(document: Mapping[str, Any]) -> str:
    a, b = (document["arms"][arm] for arm in ARMS)
    names = [(part, name) for part in ("knobs", "config") for name in a[part]]
    names.sort(key=lambda item: item[1] not in a["differs"])
    none = {"knobs": "unlimited", "config": "–"}
    off = () if document["device"].startswith("cuda") else GPU_KNOBS  # as the page shows them
    rows = [
        [
            escape(name),
            *("off" if name in off else escape(setting_text(arm[part].get(name), none[part])) for arm in (a, b)),
        ]
        for part, name in names
    ]
    marked = sum(name in a["differs"] for _, name in names)
    return table(rows, ("setting", *_HEADS), marked=marked)


def pairs(values: Mapping[str, Any], none: str = "–") -> str:
    """Returns a table of names and values; ``none`` stands for null."""
    return table([(escape(name), escape(setting_text(value, none))) for name, value in values.items()])
