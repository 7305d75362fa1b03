"""A run as one self-contained HTML page: charts, statistics, settings. It needs no server."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import plotly.graph_objects as go
import plotly.io

from roseplay.recording import charts
from roseplay.recording.palette import COLOURS
from roseplay.recording.reader import Recording
from roseplay.recording.run import Run, changes_text, setting_text
from roseplay.recording.run_statistics import Statistic, run_statistics

_CHARTS = (
    ("Inter-token latency", "ms, a point a token", charts.itl),
    ("Tokens per step", "width is time", charts.step_tokens),
    ("KV blocks", "after each step; a diamond is a preemption", charts.kv_blocks),
    ("Time to first token", "share of requests", charts.ttft),
)
_UNLIMITED = ("max_step_tokens",)  # engine properties for which null means no limit
_STYLE = """
body { margin: 0 auto; max-width: 1120px; padding: 24px 16px 48px; background: VAR(surface); color: VAR(ink);
  font: 13px/1.5 "IBM Plex Sans", system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0; }
h2 { font-size: 13px; margin: 24px 0 0; padding-top: 10px; border-top: 1px solid VAR(line); }
h2 small, p { color: VAR(ink3); font-weight: 400; margin: 2px 0 0; }
table { border-collapse: collapse; width: 100%; margin-top: 6px; }
td { padding: 3px 12px 3px 0; border-bottom: 1px solid VAR(grid); vertical-align: top; overflow-wrap: anywhere; }
td.n { font-family: "IBM Plex Mono", ui-monospace, monospace; text-align: right; white-space: nowrap; }
td.m { color: VAR(ink3); }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 0 32px; }
"""


def run_report(recording: Recording) -> bytes:
    """Returns the page in UTF-8."""
    run, header = Run(recording), recording.header
    info = header["info"]
    said = f"{info['model']} on {info['device']}, {info['dtype']} · recorded {header.get('created', '')}"
    slowed = sum(until - since for since, until, _ in run.slowed()) / 1000
    said += f" · {slowed:.1f} s of it in slow motion" if slowed else ""
    cut = " · the file was cut off, its last line is left out" if recording.cut else ""
    parts = [
        f"<h1>A run of roseplay</h1><p>{escape(recording.name)} · {escape(said + cut)}</p>",
        _titled("Figures", "definitions beside them"),
        _statistics_table(run_statistics(run)),
    ]
    for number, (title, sub, draw) in enumerate(_CHARTS):
        parts += [_titled(title, sub), _chart(draw(run), number)]
    changes = [(f"{(t - run.start) / 1000:.2f} s, step {step}", changes_text(change)) for t, step, change in run.knobs]
    parts += [_titled("Knob changes", f"{len(changes)}"), _table(changes)] if changes else []
    knobs = [(name, setting_text(value)) for name, value in header["knobs"].items()]
    parts += ['<div class="two"><div>', _titled("Settings at the start", ""), _table(knobs), "</div>"]
    environment = {**info, **(header.get("environment") or {})}
    known = [(name, setting_text(value, "∞" if name in _UNLIMITED else "–")) for name, value in environment.items()]
    parts += ["<div>", _titled("Model and environment", ""), _table(known), "</div></div>"]
    style = _STYLE
    for name, colour in COLOURS.items():
        style = style.replace(f"VAR({name})", colour)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>roseplay run</title>'
    icon = '<link rel="icon" href="data:,">'  # else a browser requests one
    page = f'<!doctype html><html lang="en"><head>{head}{icon}<style>{style}</style></head><body>{"".join(parts)}</body></html>'
    return page.encode("utf-8", "replace")


def _titled(title: str, sub: str) -> str:
    return f"<h2>{escape(title)} <small>{escape(sub)}</small></h2>"


def _chart(figure: go.Figure, number: int) -> str:
    """The first chart brings plotly itself along."""
    config = {"displaylogo": False, "responsive": True}
    return str(
        plotly.io.to_html(
            figure, config=config, include_plotlyjs=number == 0, full_html=False, div_id=f"chart-{number}"
        )
    )


def _statistics_table(rows: Iterable[Statistic]) -> str:
    lines = (
        f'<tr><td>{escape(row.name)}</td><td class="n">{_number(row.value)} {row.unit}</td>'
        f'<td class="m">{escape(row.meaning)}</td></tr>'
        for row in rows
    )
    return f"<table>{''.join(lines)}</table>"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else f"{value:.1f}"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = (f'<tr><td>{escape(a)}</td><td class="n">{escape(b)}</td></tr>' for a, b in rows)
    return f"<table>{''.join(lines)}</table>"
