"""Pieces of the page's own HTML. Gradio treats them as templates, so whatever is not constant needs ``plain``."""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

import roseplay
from roseplay.play.tab import added_tabs
from roseplay.play.terms import ABOUT, KEYS, WORDS
from roseplay.play.web import assets

# Characters with a meaning in JavaScript template strings or Handlebars, into which Gradio turns a component's HTML.
_TEMPLATE = {ord(sign): f"&#{ord(sign)};" for sign in "`$\\{}@"}

LOGO = (
    '<svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true">'
    + "".join(
        f'<rect x="{x * 6.5}" y="{y * 6.5}" width="5" height="5" fill="var(--rp-{"line2" if x != 1 and y != 1 else "rose"})"/>'
        for y in range(3)
        for x in range(3)
    )
    + '<rect x="13" y="13" width="5" height="5" fill="var(--rp-rose)"/></svg>'
)
# The page until its scripts run: in front of what Gradio draws, which is hidden.
OPENING = f'<div id="rp-opening" class="rp-brand">{LOGO}<b>roseplay</b></div>'
THEME_ICON = (
    '<svg width="14" height="14" aria-hidden="true"><circle cx="7" cy="7" r="5" fill="none" stroke="currentColor" '
    'stroke-width="1.3"/><path d="M7 2v10a5 5 0 0 0 0-10z" fill="currentColor"/></svg>'
)
KNOBS_BUTTON = (
    '<button type="button" id="rp-knobs-button" aria-expanded="false">Settings <span></span><svg width="12" height="8" '
    'aria-hidden="true"><path d="M1 1l5 5 5-5" fill="none" stroke="currentColor" stroke-width="1.5"/></svg></button>'
)
VIEW_BUTTON = (
    '<button type="button" id="rp-view"><span class="rp-for-simple">All controls</span>'
    '<span class="rp-for-full">Fewer controls</span></button>'
)
MORE_BUTTON = (
    '<button type="button" id="rp-more-button" aria-expanded="false">More settings <span></span><svg width="10" height="7" '
    'aria-hidden="true"><path d="M1 1l4 4 4-4" fill="none" stroke="currentColor" stroke-width="1.3"/></svg></button>'
)


def term(name: str, text: str | None = None) -> str:
    """Returns a button that explains a term of the glossary (see ``live/terms.js``), labelled ``text`` or its name."""
    about = f'data-term="{escape(name)}" aria-expanded="false" aria-haspopup="dialog"'
    return f'<button type="button" class="rp-term" {about}>{escape(text or name)}</button>'


STEADY = (
    f'{term("Steady traffic")}<span class="rp-tg" role="group" aria-label="Spacing of steady requests">'
    '<button type="button" data-spacing="poisson" aria-pressed="true">Poisson</button>'
    '<button type="button" data-spacing="even" aria-pressed="false">even</button></span>'
    '<button type="button" class="rp-toggle" role="switch" aria-checked="false" aria-label="Steady traffic"></button>'
)
OWN = (
    f'{term("Your own traffic")}<button type="button" class="rp-choose" disabled>Choose file…</button>'
    '<input type="file" accept=".jsonl,.json,.csv,.txt" aria-label="File of traffic" hidden>'
    '<p class="rp-file" hidden><b></b><span></span><button type="button" class="rp-play"></button></p>'
    '<p class="rp-refused" role="status"></p>'
)
# Beside the model's chip: slow motion, and a simulated engine.
CHIPS = (
    '<span class="rp-chip rp-slow-chip" hidden></span>'
    '<button type="button" class="rp-sim-mark" aria-haspopup="dialog" hidden></button>'
)
FOOT = (
    '<span id="rp-step">step –</span><button type="button" aria-expanded="false" aria-haspopup="dialog">copy settings</button>'
    f"<span>v{roseplay.__version__}</span>"
)


def plain(text: object) -> str:
    """Escape text for an element or attribute of a component's HTML: it is shown verbatim, never run."""
    return escape(str(text)).translate(_TEMPLATE)


def html(template: str, **settings: Any) -> gr.HTML:
    """Returns a piece of the page without Gradio's styles. ``js_on_load`` runs once it is on the page."""
    settings.setdefault("js_on_load", None)
    return gr.HTML(html_template=template, apply_default_css=False, padding=False, container=False, **settings)


def help_dialog() -> str:
    """Returns the help: what the page shows, words, and keys."""
    about = (*ABOUT, *(sentence for tab in added_tabs() for sentence in tab.about))
    keys = (*KEYS, *(row for tab in added_tabs() for row in tab.keys))
    return (
        '<dialog id="rp-help" aria-labelledby="rp-help-title"><form method="dialog"><h2 id="rp-help-title" tabindex="-1" autofocus>'
        "What this page shows</h2>"
        + "".join(f"<p>{sentence}</p>" for sentence in about)
        + '<p><a href="ui/doctor" target="_blank">The doctor\'s page</a> says how this machine computes a step, and what slows it down.</p>'
        '<h2>Words</h2><dl class="words">'
        + "".join(f"<div><dt>{word}</dt><dd>{escape(meaning)}</dd></div>" for word, meaning in WORDS.items())
        + "</dl><h2>Keys</h2><dl>"
        + "".join(f"<div><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>" for key, what in keys)
        + "</dl><button>Close</button></form></dialog>"
    )


def kpi(label: str, name: str, *, spark: bool = False, bar: bool = False) -> str:
    """Returns a figure of the header, which ``live/figures.js`` fills."""
    more = '<canvas width="56" height="24" aria-hidden="true"></canvas>' if spark else ""
    more += '<u aria-hidden="true"><i></i></u>' if bar else ""
    return f'<div class="rp-kpi {name}"><span>{term(label)}<i></i></span><b>–</b>{more}</div>'


def section(title: str, hint: str, name: str) -> gr.HTML:
    """Returns the head of a section of the rail."""
    return html(f"<h3>{term(title)}<span>{hint}</span></h3>", elem_classes="rp-sechead", elem_id=f"rp-{name}-head")


def panel(name: str, title: str, sub: str, module: str, *, about: str = "") -> gr.HTML:
    """Returns a view: a head of 30 pixels above a box that a module of the page fills.

    Args:
        about: the term of the glossary that explains it, by default its title.
    """
    return html(
        f'<div class="rp-ph"><h3>{term(about or title, title)}</h3><span class="rp-sub">{sub}</span>'
        '<span class="rp-rt"></span></div><div class="rp-plot"></div>',
        elem_id=f"rp-{name}",
        elem_classes="rp-panel",
        js_on_load=assets.mount(module),
    )
