"""A report as one self-contained HTML page, which needs no server: its style, its tables and its charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # plotly takes half a second to import
    import plotly.graph_objects as go

# The light theme of the page (``tokens.css``; a test keeps them equal).
COLOURS: Mapping[str, str] = {
    "surface": "#FFFFFF",
    "raised": "#FFFFFF",
    "line": "#DFE3E8",
    "line2": "#C9CFD7",
    "grid": "#EDEFF2",
    "ink": "#14181F",
    "ink3": "#626C7A",
    "rose": "#C2184F",
    "rosewash": "#FBEAF0",
    "prompt": "#3D4656",
    "decode": "#A9B3C1",
    "shared": "#14181F",
    "cached": "#C3CAD3",
    "free": "#F0F2F4",
    "c0": "#0B4FA8",
    "c1": "#C96600",
    "c2": "#12805E",
    "c3": "#7A2E73",
    "c4": "#3A9BDD",
    "c5": "#8C2F0A",
    "c6": "#A5973A",
    "c7": "#74839A",
}
_STYLE = """
body { margin: 0 auto; max-width: 1120px; padding: 24px 16px 48px; background: VAR(surface); color: VAR(ink);
  font: 13px/1.5 "IBM Plex Sans", system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0; }
h2 { font-size: 13px; margin: 24px 0 0; padding-top: 10px; border-top: 1px solid VAR(line); }
h2 small, p, th, .quiet { color: VAR(ink3); font-weight: 400; }
p { margin: 2px 0 0; } ol { margin: 6px 0; padding-left: 20px; }
table { border-collapse: collapse; width: 100%; margin-top: 6px; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 12px 3px 0; border-bottom: 1px solid VAR(grid); vertical-align: top; overflow-wrap: anywhere; }
th, td { text-align: right; } th:first-child, td:first-child, .notes td:last-child { text-align: left; }
.notes td:last-child { color: VAR(ink3); } tr.differs td { background: VAR(rosewash); }
.b { color: VAR(rose); } .better { font-weight: 700; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 0 32px; }
"""


def report_page(title: str, parts: Iterable[str]) -> str:
    """Returns the page with these parts, which are HTML already."""
    style = _STYLE
    for name, colour in COLOURS.items():
        style = style.replace(f"VAR({name})", colour)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    icon = '<link rel="icon" href="data:,">'  # else a browser requests one
    return f'<!doctype html><html lang="en"><head>{head}{icon}<style>{style}</style></head><body>{"".join(parts)}</body></html>'


def heading(title: str, sub: object = "") -> str:
    return f"<h2>{escape(title)} <small>{escape(str(sub))}</small></h2>"


def table(rows: Sequence[Sequence[str]], head: Sequence[str] = (), *, marked: int = 0, notes: bool = False) -> str:
    """Returns a table of cells that are HTML already.

    Args:
        marked: how many rows from the first on are highlighted.
        notes: the last column is text.
    """
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    opening = ['<tr class="differs">'] * marked + ["<tr>"] * (len(rows) - marked)
    body = "".join(f"{tag}{line}</tr>" for tag, line in zip(opening, lines, strict=True))
    top = f"<tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>" if head else ""
    return f'<table class="{"notes" if notes else ""}">{top}{body}</table>'


def figure(x: str, y: str) -> go.Figure:
    """Returns an empty chart with these titles of its axes."""
    import plotly.graph_objects as go

    axis = {"gridcolor": COLOURS["grid"], "linecolor": COLOURS["line2"], "zeroline": False, "tickfont": {"size": 11}}
    return go.Figure(
        layout={
            "template": "none",
            "height": 300,
            "margin": {"l": 56, "r": 78, "t": 34, "b": 40},
            "paper_bgcolor": COLOURS["surface"],
            "plot_bgcolor": COLOURS["surface"],
            "font": {"family": "IBM Plex Sans, system-ui, sans-serif", "size": 12, "color": COLOURS["ink3"]},
            "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
            "hoverlabel": {
                "font": {"color": COLOURS["ink"]},
                "bgcolor": COLOURS["raised"],
                "bordercolor": COLOURS["line2"],
            },
            "xaxis": {**axis, "title": {"text": x, "standoff": 6}},
            "yaxis": {**axis, "title": {"text": y}, "rangemode": "tozero"},
        }
    )


def charts(figures: Iterable[go.Figure]) -> list[str]:
    """Returns the charts as HTML; the first brings plotly itself along."""
    from plotly.io import to_html

    config = {"displaylogo": False, "responsive": True}
    return [
        to_html(one, config=config, include_plotlyjs=number == 0, full_html=False, div_id=f"chart-{number}")
        for number, one in enumerate(figures)
    ]
