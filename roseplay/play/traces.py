"""The Traces tab, to download the current run or open a recorded one. ``static/traces`` fills it."""

from __future__ import annotations

from html import escape

from roseplay.play.markup import html, plain
from roseplay.play.page_host import PageHost
from roseplay.play.web import assets
from roseplay.recording.exports import KINDS
from roseplay.recording.reader import demo_path
from roseplay.recording.recorder import KEEP_BYTES, KEEP_S

_FIGURES = {"seconds": "length", "steps": "steps", "requests": "requests", "tokens": "tokens", "bytes": "size"}


def traces(host: PageHost) -> None:
    """Build the tab's content in the current Gradio context."""
    html(_content(host.replaying), elem_id="rp-traces-all", js_on_load=assets.mount("traces/traces.js"))


def _content(replaying: str | None) -> str:
    if replaying:
        title, hint = "This recording", plain(replaying)
        words = "This page has no engine. These files contain everything in the recording."
    else:
        title, hint = "This run", f"last {KEEP_S / 60:g} min, {KEEP_BYTES / 1e6:g} MB"
        words = "Telemetry covers all requests; texts are included only for this tab's own requests."
    parts = (_figures(title, hint), _downloads(words), _open())
    sections = "".join(f"<section>{part}</section>" for part in parts)
    contents = '<section class="rp-contents-of"><h3>What happened<span>bursts and changed settings, newest first</span></h3></section>'
    return f'<div class="rp-traces">{sections}{contents}</div>'


def _figures(title: str, hint: str) -> str:
    rows = "".join(f'<tr><td>{label}</td><td data-of="{name}">–</td></tr>' for name, label in _FIGURES.items())
    empty = '<p class="rp-empty">Nothing yet: press Burst on Live.</p>'
    return f'<h3>{title}<span>{hint}</span></h3><table>{rows}</table>{empty}<p class="rp-to-file"></p>'


def _downloads(words: str) -> str:
    files = "".join(
        f'<li><a download data-file="{kind.file}" href="#">{kind.file}</a><span>{escape(kind.opens)}</span></li>'
        for kind in KINDS.values()
    )
    return f'<h3>Take it away</h3><ul aria-label="Downloads">{files}</ul><p>{words}</p>'


def _open() -> str:
    shipped = (
        "<h3>Demo<span>recorded with SmolLM2</span></h3><p>Four chats, a burst that makes their tokens wait, a smaller "
        'prefill budget, and the same burst again.</p><p><button type="button" class="rp-demo">Open the demo</button></p>'
        if demo_path()
        else ""
    )
    return (
        '<h3>Open a recording<span>.jsonl</span></h3><div class="rp-drop-zone"><button type="button" class="rp-choose">'
        "Choose a file…</button><span>or drop it here. It is read in this browser only; nothing is uploaded.</span><input "
        f'type="file" accept=".jsonl,application/x-ndjson" aria-label="A recording"></div><p class="rp-open-said" '
        f'role="status"></p>{shipped}<h3>Elsewhere</h3><p>To write a run to a file as it goes, use <code>'
        "roseplay play --record FILE</code>; to show it without an engine, <code>roseplay play --replay FILE</code>; to make the files "
        "above from it, <code>roseplay export FILE --report run.html</code>.</p>"
    )
