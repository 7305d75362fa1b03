"""The layout of the page: Gradio's own controls on the left, lanes in the middle, live views on the right."""

from __future__ import annotations

import json

import gradio as gr

from roseplay.config import catalogue
from roseplay.engine.records import COLUMNS
from roseplay.play.controls import IDS, Controls, slider_stops
from roseplay.play.demos.catalog import DEMOS
from roseplay.play.lab_tab import LabTab
from roseplay.play.markup import CHIPS, FOOT, HELP, KNOBS_BUTTON, LOGO, THEME_ICON, VIEW_BUTTON, html, kpi, panel
from roseplay.play.page_events import add_events
from roseplay.play.page_host import PageHost
from roseplay.play.prompt_bar import PromptBar
from roseplay.play.sampling import SamplingPanel
from roseplay.play.stops import RATE
from roseplay.play.terms import CONTROLS, GLOSSARY, LAB
from roseplay.play.traces import traces
from roseplay.play.traffic_section import TrafficSection
from roseplay.play.web import api, assets
from roseplay.recording.reader import demo_path
from roseplay.recording.schema import READER


def page_head(host: PageHost, view: str | None = None) -> str:
    """Returns markup for the document's head: all styles, the script to run first, and data for ``given.js``.

    Args:
        view: what visitors see who have not chosen yet: "full" or "simple"; by default simple at the first visit.
    """
    view = view or ("full" if host.replaying else "")
    given = {
        "terms": CONTROLS,
        "glossary": GLOSSARY,
        "labTerms": LAB,
        "settings": catalogue(),
        "controls": IDS,
        "stops": {"steady-rate": RATE.values, **{IDS[knob]: stops.values for knob, stops in slider_stops().items()}},
        "plotly": assets.plotly_address(),
        "recordingShape": READER,
        "columns": COLUMNS,
        # The page learns from its first poll how long each takes here.
        "demos": [{"name": demo.name, "title": demo.title, "shows": demo.shows} for demo in DEMOS.values()],
        "recordedDemo": demo_path() is not None,
        "recording": host.replaying,
    }
    data = json.dumps(given).replace("<", "\\u003c")
    return f'<meta name="rose-view" content="{view}">{assets.head()}<script type="application/json" id="rose-given">{data}</script>'


def build_page(host: PageHost, *, picks: bool = False) -> gr.Blocks:
    """Returns the page of one playground, with its named endpoints; ``picks``: visitors can choose its model."""
    with gr.Blocks(title="roseplay", fill_width=True, analytics_enabled=False) as page:
        _header(picks)
        with gr.Tabs(elem_id="rp-tabs"):
            with gr.Tab("Live", id="live", elem_id="rp-live", elem_classes="rp-page"):
                with gr.Column(elem_id="rp-rail", min_width=0):
                    html(KNOBS_BUTTON, elem_id="rp-knobs")
                    controls = Controls(host)
                    traffic = TrafficSection(host)
                    html(VIEW_BUTTON, elem_id="rp-view-row")
                    html(FOOT, elem_id="rp-foot", js_on_load=assets.mount("live/export.js"))
                html('<div class="rp-strip"></div>', elem_id="rp-story", js_on_load=assets.mount("live/story.js"))
                _middle()
                _right()
                html("", elem_id="rp-demos", js_on_load=assets.mount("live/demolist.js"))
            if not host.replaying:  # its experiments need an engine
                with gr.Tab("Lab", id="lab", elem_id="rp-lab", elem_classes="rp-page"):
                    LabTab().wire()
            with gr.Tab("Traces", id="traces", elem_id="rp-traces", elem_classes="rp-page"):
                traces(host)
        controls.wire(traffic.paced)
        traffic.wire()
        add_events(api.endpoints(host))
        api.add_chat(host)
    return page


def _header(picks: bool) -> None:
    live = '<span class="rp-live" role="status"><i></i><span>connecting</span></span>'
    brand = f'<div class="rp-brand">{LOGO}<b>roseplay</b>{live}</div>'
    html(brand, elem_id="rp-brand", js_on_load=assets.mount("main.js"))
    tag, more = ("button", 'type="button" aria-haspopup="dialog" aria-expanded="false" ') if picks else ("span", "")
    chips = f'<{tag} {more}class="rp-chip rp-model-chip" hidden></{tag}>'
    html(chips + CHIPS, elem_id="rp-chip", js_on_load=assets.mount("live/modelchip.js"))
    figures = (
        kpi("tokens/s", "tps", spark=True)
        + kpi("run / wait", "rw")
        + kpi("TTFT p50 / p95", "ttft")
        + kpi("ITL p50 / p99", "itl")
        + kpi("KV in use", "kv", bar=True)
        + kpi("saved by sharing", "saved")
    )
    html(figures, elem_id="rp-kpis", js_on_load=assets.mount("live/figures.js"))
    tools = (
        f'<button type="button" id="rp-theme" aria-label="Light or dark" title="Light or dark">{THEME_ICON}</button>'
        '<button type="button" id="rp-help-button" aria-label="Help" title="Help (?)">?</button>'
    )
    html(tools + HELP, elem_id="rp-tools", js_on_load=assets.mount("keys.js"))


def _middle() -> None:
    with gr.Column(elem_id="rp-mid", min_width=0):
        lanes = html(
            '<div class="rp-lanes" role="group" aria-label="Lanes"></div><div class="rp-dots" aria-hidden="true"></div>'
            '<div class="rp-said" role="status" aria-live="polite"></div>',
            elem_id="rp-lanes",
            js_on_load=assets.mount("lanes/lanes.js", "restore"),
        )
        PromptBar().wire(lanes)
        SamplingPanel()
        panel("steps", "Steps", "", "live/steps.js")


def _right() -> None:
    with gr.Column(elem_id="rp-right", min_width=0):
        panel("pair", "Before and after", "", "live/pair.js")
        panel("itl", "Inter-token latency", "ms, one dot per token", "live/itl.js")
        panel("tokens", "Tokens per step", "width = time", "live/tokens.js")
        panel("blockmap", "KV blocks", "", "live/blockmap.js")
        panel("ttft", "TTFT", "", "live/ttft.js")
        panel("kvtime", "KV over time", "", "live/kvtime.js")
        panel("replicas", "Replicas", "", "live/replicas.js")
        panel("absent", "Not reported", "by this server", "live/absent.js")
