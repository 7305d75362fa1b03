"""Reports as self-contained HTML pages, which need no server: their style, tables and charts."""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseplay.formats.modules import script_of

if TYPE_CHECKING:  # plotly takes half a second to import
    import plotly.graph_objects as go

TOKENS = Path(__file__).with_name("tokens.css")
_LIGHT = TOKENS.read_text(encoding="utf-8").partition("body.dark")[0]
COLOURS: Mapping[str, str] = dict(re.findall(r"--rp-(\w+): (#\w{6});", _LIGHT))  # by name, as #rrggbb
SANS, MONO = re.findall(r"--rp-(?:sans|mono): (.*);", _LIGHT)
_STYLE = """
body { margin: 0 auto; max-width: 1120px; padding: 24px 16px 48px; background: var(--rp-surface); color: var(--rp-ink);
  font: 400 var(--rp-lg)/20px var(--rp-sans); }
h1 { font: 700 var(--rp-touch)/20px var(--rp-sans); margin: 0; }
h2 { font: var(--rp-strong); margin: 24px 0 0; padding-top: 10px; border-top: 1px solid var(--rp-line); }
h2 small { font: var(--rp-small); margin-left: 4px; }
h2 small, p, th, .quiet { color: var(--rp-ink3); font-weight: 400; }
p { margin: 2px 0 0; } ol { margin: 8px 0; padding-left: 20px; color: var(--rp-ink2); }
table { border-collapse: collapse; width: 100%; margin-top: 6px; font-size: var(--rp-md); line-height: 16px; }
th, td { padding: 3px 12px 3px 0; border-bottom: 1px solid var(--rp-grid); vertical-align: top; overflow-wrap: anywhere; }
th:first-child, td:first-child { overflow-wrap: break-word; min-width: 140px; }  /* beside long values */
.pair { display: block; width: 100%; height: 480px; margin: 12px 0; }
th, td { text-align: right; } th:first-child, td:first-child, .notes td:last-child { text-align: left; }
th { font-size: var(--rp-sm); } td { font-family: var(--rp-mono); }
td:first-child, .notes td:last-child { font-family: var(--rp-sans); color: var(--rp-ink2); }
.notes td:last-child { color: var(--rp-ink3); } tr.differs td { background: var(--rp-rosewash); }
.b, .rp-hand { color: var(--rp-rose); } .better { font-weight: 700; }
@media (max-width: 600px) { .pair { height: 620px; } td .quiet { display: block; } td:not(:first-child) { overflow-wrap: normal; } }
.view { display: flex; flex-direction: column; height: 320px; } .rp-plot { flex: 1; min-height: 0; }
.rp-plot canvas { display: block; width: 100%; height: 100%; } .rp-rt { float: right; font: var(--rp-small); }
.rp-lg { margin-left: 12px; } .rp-lg svg { margin-right: 5px; vertical-align: middle; } .rp-lg b { font-weight: 700; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 0 32px; }
"""


def report_page(title: str, parts: Iterable[str]) -> str:
    """Returns a page of these parts, which must be HTML."""
    style = _fonts() + _LIGHT + _STYLE
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    icon = '<link rel="icon" href="data:,">'  # otherwise a browser requests one
    return f'<!doctype html><html lang="en"><head>{head}{icon}<style>{style}</style></head><body>{"".join(parts)}</body></html>'


@functools.cache
def _fonts() -> str:
    """Returns CSS rules for the page's fonts, which come with Gradio; "" if it has no such files."""
    gradio = importlib.util.find_spec("gradio")
    if gradio is None or gradio.origin is None:
        return ""
    folder = Path(gradio.origin).parent / "templates" / "frontend" / "static" / "fonts"
    rules = []
    for family in ("Sans", "Mono"):
        for weight, name in ((400, "Regular"), (700, "Bold")):
            file = folder / f"IBMPlex{family}" / f"IBMPlex{family}-{name}.woff2"
            if file.is_file():
                data = base64.b64encode(file.read_bytes()).decode()
                url = f'url(data:font/woff2;base64,{data}) format("woff2")'
                rules.append(f'@font-face {{ font-family: "RP {family}"; font-weight: {weight}; src: {url}; }}')
    return "\n".join(rules)


def heading(title: str, sub: object = "") -> str:
    return f"<h2>{escape(title)} <small>{escape(str(sub))}</small></h2>"


def table(rows: Sequence[Sequence[str]], head: Sequence[str] = (), *, marked: int = 0, notes: bool = False) -> str:
    """Returns a table of cells, which must be HTML.

    Args:
        marked: number of rows to highlight, from the first.
        notes: whether the last column is text.
    """
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    opening = ['<tr class="differs">'] * marked + ["<tr>"] * (len(rows) - marked)
    body = "".join(f"{tag}{line}</tr>" for tag, line in zip(opening, lines, strict=True))
    top = f"<tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>" if head else ""
    return f'<table class="{"notes" if notes else ""}">{top}{body}</table>'


def drawn(
    element: str, module: str, data: Any, given: Mapping[str, Any] | None = None, folder: Path | None = None
) -> str:
    """Returns an element with a script in which a module of the page draws data into it.

    Args:
        element: its HTML; the first attribute is its class.
        module: its export ``draw`` gets the element and the data.
        given: what the server puts into the page for its modules (``shared/given.js``), if this one needs that.
        folder: that of the extension that has the module.
    """
    name = re.findall(r'class="(\w+)"', element)[0]
    script = script_of(module, folder).replace("</", "<\\/")
    draw = f'modules["{module}"].draw(document.querySelector(".{name}"), {_json(data)});'
    head = "" if given is None else f'<script type="application/json" id="rose-given">{_json(given)}</script>'
    return f'{head}{element}<script type="module">{script}{draw}</script>'


def picture(pair: Mapping[str, Any]) -> str:
    """Returns the picture of two runs, see ``traffic/pair.py``, without its sentence."""
    return drawn('<canvas class="pair" role="img"></canvas>', "shared/pair/report.js", {**pair, "sentence": []})


def _json(data: Any) -> str:
    return json.dumps(data).replace("<", "\\u003c")


def figure(x: str, y: str) -> go.Figure:
    """Returns an empty chart with these axis titles."""
    import plotly.graph_objects as go

    axis = {
        "gridcolor": COLOURS["grid"],
        "linecolor": COLOURS["line2"],
        "zeroline": False,
        "tickfont": {"size": 10, "family": MONO},
    }
    return go.Figure(
        layout={
            "template": "none",
            "height": 300,
            "margin": {"l": 56, "r": 24, "t": 52, "b": 40},
            "paper_bgcolor": COLOURS["surface"],
            "plot_bgcolor": COLOURS["surface"],
            "font": {"family": SANS, "size": 11, "color": COLOURS["ink3"]},
            # Leaves a row just above the plot for the labels of lines.
            "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.09, "yanchor": "bottom"},
            "hoverlabel": {
                "font": {"color": COLOURS["ink"]},
                "bgcolor": COLOURS["raised"],
                "bordercolor": COLOURS["line2"],
            },
            "xaxis": {**axis, "title": {"text": x, "standoff": 6, "font": {"size": 11}}},
            "yaxis": {**axis, "title": {"text": y, "font": {"size": 11}}, "rangemode": "tozero"},
        }
    )


def charts(figures: Iterable[go.Figure]) -> list[str]:
    """Returns the charts as HTML; the first includes plotly."""
    from plotly.io import to_html

    config = {"displaylogo": False, "responsive": True}
    return [
        to_html(chart, config=config, include_plotlyjs=number == 0, full_html=False, div_id=f"chart-{number}")
        for number, chart in enumerate(figures)
    ]
