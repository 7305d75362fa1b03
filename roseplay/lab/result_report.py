"""A result as one self-contained HTML file: curves, table, settings, environment, sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.io import to_html

from roseplay.config import GPU_KNOBS
from roseplay.lab.sentences import is_clear, number
from roseplay.lab.spec import ARMS

# A is a solid line in ink, B a dashed one in rose, as on the page.
_LINES = {"A": {"color": "#14181F", "width": 1.75}, "B": {"color": "#C2184F", "width": 1.75, "dash": "6px 4px"}}
_TAIL_TICKS = (0, 50, 90, 99, 99.9, 99.99)
_STYLE = """
body { font: 14px/20px "IBM Plex Sans", system-ui, sans-serif; color: #14181F; background: #fff; max-width: 900px;
  margin: 32px auto; padding: 0 16px; }
h1 { font-size: 22px; line-height: 28px; margin: 0; } h2 { font-size: 14px; margin: 28px 0 6px; }
p { margin: 4px 0; } .quiet { color: #626C7A; } ol { margin: 6px 0; padding-left: 20px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 8px; border-bottom: 1px solid #DFE3E8; font-weight: 400; }
th { color: #626C7A; } td:first-child, th:first-child { text-align: left; padding-left: 0; }
tr.differs td { background: #FBEAF0; } .b { color: #C2184F; } .better { font-weight: 700; }
"""


def result_report(document: Mapping[str, Any]) -> str:
    """Returns the report of a checked document that has its summary."""
    title = f"{document['title']}: A and B"
    sections = [
        f"<h1>{escape(document['title'])}</h1>",
        f'<p class="quiet">{escape(_about(document))}</p>',
        "<ol>" + "".join(f"<li>{escape(line)}</li>" for line in document["summary"]["sentences"]) + "</ol>",
        "<h2>Inter-token latency: gaps at most this long, both axes on a logarithm</h2>",
        to_html(_itl_tail(document), full_html=False, include_plotlyjs=True, config={"displaylogo": False}),
        "<h2>Time to first token: share of requests</h2>",
        to_html(_ttft_cdf(document), full_html=False, include_plotlyjs=False, config={"displaylogo": False}),
        "<h2>Result</h2>",
        _metrics(document),
        "<h2>Settings</h2>",
        _settings(document),
        "<h2>Traffic and environment</h2>",
        _pairs({"scenario": document["scenario"], "seed": document["seed"], **document["params"]}),
        _pairs({"created": document["created"], **document["environment"]}),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body>{''.join(sections)}</body></html>"
    )


def _about(document: Mapping[str, Any]) -> str:
    limits, order = document["limits"], " ".join(document["order"])
    name = f"{document['name']}. " if document["name"] else ""
    return (
        f"{name}{document['model']} on {document['device']}, {document['dtype']}. {document['repeats']} runs an arm, in the"
        f" order {order}; medians, in brackets the lowest and highest. Promise: TTFT at most {limits['ttft_ms']:g} ms and"
        f" each request's own p99 ITL at most {limits['itl_ms']:g} ms."
    )


def _pooled(document: Mapping[str, Any], arm: str, key: str) -> list[float]:
    runs = [run for run in document["runs"] if run["arm"] == arm]
    if key == "itl_ms":
        return sorted(gap for run in runs for gap in run["itl_ms"])
    return sorted(r[key] for run in runs for r in run["requests"] if r[key] is not None)


def _itl_tail(document: Mapping[str, Any]) -> go.Figure:
    """Percentiles on a scale of -log10(1 - p), which includes the worst gap."""
    figure = _figure("ms")
    top = 1.0
    for arm in ARMS:
        gaps = _pooled(document, arm, "itl_ms")
        heights = [-math.log10(1 - index / (len(gaps) + 1)) for index in range(1, len(gaps) + 1)]
        top = max([top, *heights[-1:]])
        figure.add_scatter(x=_thinned(gaps), y=_thinned(heights), name=arm, line={**_LINES[arm], "shape": "hv"})
    ticks = [percent for percent in _TAIL_TICKS if -math.log10(1 - percent / 100) <= top]
    figure.update_xaxes(type="log")
    figure.update_yaxes(
        tickvals=[-math.log10(1 - percent / 100) for percent in ticks],
        ticktext=["0" if not percent else f"p{percent:g}" for percent in ticks],
    )
    figure.add_vline(x=document["limits"]["itl_ms"], line={"dash": "dot", "width": 1, "color": "#626C7A"})
    return figure


def _ttft_cdf(document: Mapping[str, Any]) -> go.Figure:
    figure = _figure("ms")
    for arm in ARMS:
        times = _pooled(document, arm, "ttft_ms")
        shares = [100 * index / len(times) for index in range(1, len(times) + 1)]
        figure.add_scatter(x=_thinned(times), y=_thinned(shares), name=arm, line={**_LINES[arm], "shape": "hv"})
    figure.update_yaxes(range=[0, 101], ticksuffix=" %")
    figure.add_vline(x=document["limits"]["ttft_ms"], line={"dash": "dot", "width": 1, "color": "#626C7A"})
    return figure


def _figure(unit: str) -> go.Figure:
    layout = {
        "height": 300,
        "margin": {"l": 56, "r": 16, "t": 8, "b": 36},
        "paper_bgcolor": "#fff",
        "plot_bgcolor": "#fff",
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
        "font": {"size": 12, "color": "#434B58"},
    }
    figure = go.Figure(layout=layout)
    figure.update_xaxes(gridcolor="#EDEFF2", linecolor="#C9CFD7", ticksuffix=f" {unit}", showticksuffix="last")
    figure.update_yaxes(gridcolor="#EDEFF2", zeroline=False)
    return figure


def _thinned(values: list[float], most: int = 2000) -> list[float]:
    """Returns about ``most`` points of a curve; its sparse tail is kept whole."""
    if len(values) <= most:
        return values
    tail = most // 2
    step = math.ceil((len(values) - tail) / tail)
    return values[:-tail:step] + values[-tail:]


def _metrics(document: Mapping[str, Any]) -> str:
    rows = []
    for row in document["summary"]["metrics"]:
        better = None
        if is_clear(row, document["repeats"]):
            better = "b" if (row["b"] < row["a"]) == (row["better"] == "lower") else "a"
        cells = [escape(f"{row['title']} {row['unit']}".strip())]
        for side in ("a", "b"):
            mark = ' class="better"' if better == side else ""
            spread = _range(row[f"{side}_range"])
            cells.append(f'<span{mark}>{_value(row[side])}</span> <span class="quiet">{spread}</span>')
        cells.append("–" if row["ratio"] is None else f"{row['ratio']:.2f}×")
        rows.append(cells)
    return _table(("metric", "A", '<span class="b">B</span>', "B / A"), rows)


def _settings(document: Mapping[str, Any]) -> str:
    a, b = (document["arms"][arm] for arm in ARMS)
    names = [(part, name) for part in ("knobs", "config") for name in a[part]]
    names.sort(key=lambda item: item[1] not in a["differs"])
    none = {"knobs": "unlimited", "config": "–"}
    off = () if document["device"].startswith("cuda") else GPU_KNOBS  # as the page shows them
    rows = [
        [escape(name), *("off" if name in off else _setting(arm[part].get(name), none[part]) for arm in (a, b))]
        for part, name in names
    ]
    marked = sum(name in a["differs"] for _, name in names)
    return _table(("setting", "A", '<span class="b">B</span>'), rows, marked=marked)


def _pairs(values: Mapping[str, Any]) -> str:
    return _table(("", ""), [[escape(name), _setting(value)] for name, value in values.items()])


def _table(head: Iterable[str], rows: list[list[str]], marked: int = 0) -> str:
    """Cells are HTML already; the first ``marked`` rows are highlighted."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    opening = ['<tr class="differs">'] * marked + ["<tr>"] * (len(rows) - marked)
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    body = "".join(f"{tag}{line}</tr>" for tag, line in zip(opening, lines, strict=True))
    return f"<table><tr>{top}</tr>{body}</table>"


def _setting(value: Any, none: str = "–") -> str:
    if value is None:
        return none
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else escape(str(value))


def _value(value: float | None) -> str:
    return "–" if value is None else number(value)


def _range(pair: list[float | None]) -> str:
    low, high = pair
    return "" if low is None or high is None or low == high else f"[{number(low)}, {number(high)}]"
