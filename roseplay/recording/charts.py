"""The charts of a run's report, drawn by plotly in the page's colours."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from roseplay.formats.numbers import slowed_text
from roseplay.formats.report_page import COLOURS, MONO
from roseplay.formats.report_page import figure as new_figure
from roseplay.recording.recorded_run import RecordedRun
from roseplay.recording.run import RequestRun, TokenRun
from roseplay.traffic.metrics import percentile

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LEAST_APART = 0.06  # of a chart's width: changes closer than this share a label
_FAR_OFF = 20  # ratio of the worst gap to the median above which the axis is logarithmic
_DASHES = {50: "solid", 95: "4px,3px", 99: "1.5px,2.5px"}  # by percentile


def itl(run: RecordedRun) -> go.Figure:
    """Returns inter-token latency: a point for each token, coloured by kind of request, and percentiles as lines."""
    figure = new_figure("seconds", "ms")
    gaps = run.gaps()
    groups: dict[str, list[tuple[RequestRun, TokenRun, float]]] = {}
    for gap in gaps:
        groups.setdefault(_group(gap[0]), []).append(gap)
    for number, (name, members) in enumerate(sorted(groups.items())):
        figure.add_scattergl(
            x=[_seconds(run, token.t) for _, token, _ in members],
            y=[ms for _, _, ms in members],
            text=[f"#{r.request_id}, step {token.step.step_id if token.step else '–'}" for r, token, _ in members],
            name=name,
            mode="markers",
            marker={"size": 4, "color": _hue(name, number)},
            hovertemplate="%{y:.1f} ms at %{x:.2f} s<br>%{text}<extra>" + name + "</extra>",
        )
    words = []
    ordered = sorted(ms for *_, ms in gaps)
    for percent, dash in _DASHES.items():
        if (value := percentile(ordered, percent)) is not None:
            figure.add_hline(value, line={"color": COLOURS["ink3"], "width": 1, "dash": dash})
            words.append(f"p{percent} {value:.1f}")
    figure.update_xaxes(title_text=f"seconds<br>{' · '.join(words)}")  # next to their lines they would overlap
    figure.update_layout(margin_b=56)
    if ordered and ordered[-1] > _FAR_OFF * (percentile(ordered, 50) or math.inf):
        low, high = max(0.1, ordered[0]), ordered[-1]
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        within = [tick for power in powers for first in (1, 2, 5) if low <= (tick := first * 10**power) <= high]
        ticks = {"tickvals": within, "ticktext": [f"{tick:g}" for tick in within]}
        figure.update_yaxes(type="log", title_text="ms, log", rangemode=None, **ticks)
    return _knobs(figure, run)


def ttft(run: RecordedRun) -> go.Figure:
    """Returns the share of requests with a first token by a time: a curve for each burst, and one for the rest."""
    figure = new_figure("ms", "% of requests")
    groups: dict[str, list[float]] = {}
    for request in run.requests.values():
        if request.ttft is not None:
            name = "lanes and programs" if request.burst is None else f"burst {request.burst}"
            name += slowed_text(run.factors_between(request.submitted, request.first))
            groups.setdefault(name, []).append(request.ttft)
    for number, (name, values) in enumerate(sorted(groups.items(), key=lambda item: (item[0][:5] != "burst", item[0]))):
        values.sort()
        share = [100 * (i + 1) / len(values) for i in range(len(values))]
        line = {"color": COLOURS["ink"] if number == 0 else COLOURS[f"c{number % 8}"], "width": 1.5, "shape": "hv"}
        x, y = [values[0], *values], [0.0, *share]
        figure.add_scatter(x=x, y=y, name=name, mode="lines", line=line, hovertemplate="%{x:.1f} ms: %{y:.0f} %")
    figure.update_yaxes(range=[0, 102])
    return figure


def step_tokens(run: RecordedRun) -> go.Figure:
    """Returns the tokens that each step computed; a bar's width is its step's duration."""
    figure = new_figure("seconds", "tokens")
    widths = [max(0.0005, (step.t1 - step.t0) / 1000) for step in run.steps]
    starts = [_seconds(run, step.t0) for step in run.steps]
    about = [f"step {step.step_id}, {step.t1 - step.t0:.1f} ms" for step in run.steps]
    for name in ("decode", "prompt"):
        figure.add_bar(
            x=starts,
            y=[getattr(step, f"{name}_tokens") for step in run.steps],
            width=widths,
            offset=0,
            name=name,
            text=about,
            textposition="none",
            marker={"color": COLOURS[name], "line": {"width": 0}},
            hovertemplate="%{y} " + name + " tokens<br>%{text}<extra></extra>",
        )
    figure.update_layout(barmode="stack", bargap=0)
    return _knobs(figure, run)


def kv_blocks(run: RecordedRun) -> go.Figure:
    """Returns the block pool over time: shared, active, cached, free; a diamond marks a preemption."""
    figure = new_figure("seconds", "blocks")
    colours = {"active": COLOURS["ink3"], **COLOURS}
    ends = [_seconds(run, step.t1) for step in run.steps]
    for name in ("shared", "active", "cached", "free"):
        counts = [getattr(step, f"blocks_{name}") for step in run.steps]
        line = {"width": 0, "shape": "hv"}
        figure.add_scatter(
            x=ends, y=counts, name=name, mode="lines", stackgroup="pool", line=line, fillcolor=colours[name]
        )
    if full := [step for step in run.steps if step.preempted]:
        total = run.recording.info.num_blocks - 1
        marker = _marker("diamond", 9, "surface", "ink")
        x = [_seconds(run, step.t0) for step in full]
        figure.add_scatter(x=x, y=[total * 0.97] * len(full), name="preempted", mode="markers", marker=marker)
    return _knobs(figure, run)


def _seconds(run: RecordedRun, ms: float) -> float:
    return round((ms - run.start) / 1000, 5)


def _marker(symbol: str, size: int, fill: str, line: str) -> dict[str, object]:
    return {"symbol": symbol, "size": size, "color": COLOURS[fill], "line": {"color": COLOURS[line], "width": 1}}


def _group(request: RequestRun) -> str:
    if request.lane is not None:
        return f"lane {request.lane}"
    return "programs" if request.burst is None else f"burst {request.burst}"


def _hue(name: str, number: int) -> str:
    if name.startswith("lane "):
        return COLOURS[f"c{(int(name[5:]) - 1) % 8}"]
    return COLOURS[f"c{4 + number % 4}"]


def _shades(run: RecordedRun) -> list[dict[str, object]]:
    """Returns shapes that shade the periods in slow motion."""
    look = {"type": "rect", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    look |= {"fillcolor": COLOURS["well"], "line": {"width": 0}}
    return [{**look, "x0": _seconds(run, since), "x1": _seconds(run, until)} for since, until, _ in run.slowed()]


def _knobs(figure: go.Figure, run: RecordedRun) -> go.Figure:
    """Add a line at each knob change, with its number in the table of changes above, and shade slow motion."""
    for factor in sorted({factor for *_, factor in run.slowed()}):
        box = _marker("square", 10, "well", "line2")
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=box, name=f"slow motion ×{factor:g}")
    placed = [(number, _seconds(run, t)) for number, (t, *_) in enumerate(run.changes, 1)]
    # Add all at once: each add_vline or add_vrect would validate all the others again.
    across = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1}
    lines = [{**across, "x0": x, "x1": x, "line": {"color": COLOURS["rose"], "width": 1}} for _, x in placed]
    figure.update_layout(shapes=[*_shades(run), *lines])
    apart = (run.end - run.start) / 1000 * _LEAST_APART
    groups: list[list[tuple[int, float]]] = []
    for change in placed:
        if groups and change[1] - groups[-1][0][1] < apart:
            groups[-1].append(change)
        else:
            groups.append([change])
    for group in groups:
        first, last = group[0][0], group[-1][0]
        text = f"<b>{first}</b>" if first == last else f"<b>{first}–{last}</b>"
        place = {"x": group[0][1], "xref": "x", "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "bottom"}
        font = {"color": COLOURS["rose"], "size": 10, "family": MONO}
        figure.add_annotation(text=text, showarrow=False, font=font, **place)
    return figure
