"""The layout of the page: Gradio's own controls on the left, the engine and its charts in the middle, lanes on the right."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from roseplay.config import catalogue
from roseplay.engine.records import COLUMNS
from roseplay.play.answer_settings import NAMES, Settings
from roseplay.play.controls import IDS, knob_sections, slider_stops
from roseplay.play.demos.catalog import DEMOS
from roseplay.play.markup import CHIPS, FOOT, KNOBS_BUTTON, LOGO, THEME_ICON, VIEW_BUTTON, help_dialog, html, kpi, panel
from roseplay.play.page_host import PageHost
from roseplay.play.sampling import sampling_panel
from roseplay.play.session import DEFAULT_LANES
from roseplay.play.steady import LEAST_RATE, MOST_RATE
from roseplay.play.stops import RATE
from roseplay.play.tab import added_tabs
from roseplay.play.terms import CONTROLS, GLOSSARY
from roseplay.play.traces import traces
from roseplay.play.traffic_section import traffic_section
from roseplay.play.web import api, assets
from roseplay.play.web.calls import EVENT
from roseplay.recording.reader import demo_path
from roseplay.recording.schema import MAX_LANES, READER
from roseplay.settings import settings_of


def page_head(host: PageHost, view: str | None = None) -> str:
    """Returns markup for the page's beginning: all styles, the script to run first, and data for ``given.js``.

    Args:
        view: what visitors see who have not chosen yet: "full" or "simple"; by default simple at the first visit.
    """
    view = view or ("full" if host.replaying else "")
    contents = {
        "terms": CONTROLS,
        "glossary": GLOSSARY | {term: about for tab in added_tabs() for term, about in tab.glossary.items()},
        "tabs": {tab.name: tab.given for tab in added_tabs()},
        "settings": catalogue(),
        "sampling": {name: settings_of(Settings)[name].to_dict() for name in NAMES},
        "controls": IDS,
        "stops": {"steady-rate": RATE.values, **{IDS[knob]: stops.values for knob, stops in slider_stops().items()}},
        "rates": [LEAST_RATE, MOST_RATE],
        "plotly": assets.plotly_address(),
        "recordingShape": READER,
        "columns": COLUMNS,
        # The page learns from its first poll how long each takes here.
        "demos": [{"name": demo.name, "title": demo.title, "shows": demo.shows} for demo in DEMOS.values()],
        "recordedDemo": demo_path() is not None,
        "recording": host.replaying,
    }
    data = json.dumps(contents).replace("<", "\\u003c")
    return f'<meta name="rose-view" content="{view}">{assets.head()}<script type="application/json" id="rose-given">{data}</script>'


def build_page(host: PageHost, *, picks: bool = False) -> gr.Blocks:
    """Returns the page of one playground, with its named endpoints; ``picks``: visitors can choose its model."""
    with gr.Blocks(title="roseplay", fill_width=True, analytics_enabled=False) as page:
        _header(picks)
        with gr.Tabs(elem_id="rp-tabs"):
            with gr.Tab("Live", id="live", elem_id="rp-live", elem_classes="rp-page"):
                with gr.Column(elem_id="rp-rail", min_width=0):
                    html(KNOBS_BUTTON, elem_id="rp-knobs")
                    knob_sections(host)
                    traffic_section()
                    html(VIEW_BUTTON, elem_id="rp-view-row")
                    html(FOOT, elem_id="rp-foot", js_on_load=assets.mount("live/export.js"))
                html('<div class="rp-strip"></div>', elem_id="rp-story", js_on_load=assets.mount("live/story.js"))
                _chats()
                _charts()
                html("", elem_id="rp-demos", js_on_load=assets.mount("live/demolist.js"))
            if not host.replaying:  # what they do needs an engine
                for tab in added_tabs():
                    with gr.Tab(tab.title, id=tab.name, elem_id=f"rp-{tab.name}", elem_classes="rp-page"):
                        tab.build()
            with gr.Tab("Traces", id="traces", elem_id="rp-traces", elem_classes="rp-page"):
                traces(host)
        api.add_endpoints(host)
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
    html(tools + help_dialog(), elem_id="rp-tools", js_on_load=assets.mount("keys.js"))


def _chats() -> None:
    with gr.Column(elem_id="rp-chats", min_width=0):
        lanes = html(
            '<div class="rp-lanes" role="group" aria-label="Lanes"></div><div class="rp-dots" aria-hidden="true"></div>'
            '<div class="rp-said" role="status" aria-live="polite"></div>',
            elem_id="rp-lanes",
            js_on_load=assets.mount("lanes/lanes.js", "restore"),
        )
        _prompt_bar(lanes)
        sampling_panel()
        panel("steps", "Steps", "", "live/steps.js")
        panel("ttft", "TTFT", "", "live/ttft.js")
        panel("kvtime", "KV over time", "", "live/kvtime.js")


def _prompt_bar(lanes: gr.HTML) -> None:
    """Make the bar under the lanes: their number, those to ask, the prompt, and Send."""
    numbers = [str(n) for n in range(1, MAX_LANES + 1)]
    with gr.Row(elem_id="rp-say"):
        settings: dict[str, Any] = {"show_label": False, "container": False, "filterable": False, "min_width": 0}
        count = gr.Dropdown(
            [(f"{n} lane{'s' * (n != '1')}", n) for n in numbers], value=str(DEFAULT_LANES), label="Lanes shown",
            elem_id="lane-count", elem_classes="rp-drop", interactive=True, **settings,
        )  # fmt: skip
        to = gr.Dropdown(
            [("all lanes", "0"), *((f"lane {n}", n) for n in numbers)], value="0", label="Send to", elem_id="to",
            elem_classes="rp-drop", interactive=True, **settings,
        )  # fmt: skip
        prompt = gr.Textbox(
            placeholder="Ask all four lanes…", label="Prompt", show_label=False, container=False, lines=1, max_lines=1,
            min_width=0, elem_id="prompt", interactive=True,
        )  # fmt: skip
        sampling = gr.Button("Sampling", min_width=0, elem_id="sampling")
        send = gr.Button("Send", variant="primary", min_width=0, elem_id="send")
    gr.on([prompt.submit, send.click], None, None, None, js=assets.call("lanes/lanes.js", "onSend"), **EVENT)
    count.input(None, [count, to], to, js=assets.call("lanes/lanes.js", "showLanes"), **EVENT)
    to.input(None, to, None, js=assets.call("lanes/lanes.js", "sendTo"), **EVENT)
    sampling.click(None, None, None, js=assets.call("lanes/sampling.js", "toggle"), **EVENT)
    # The tab remembers over a reload how many lanes it showed; a click in a lane chooses the one to ask.
    lanes.restore(None, None, [count, to], js=assets.call("lanes/lanes.js", "lanesShown"), **EVENT)


def _charts() -> None:
    with gr.Column(elem_id="rp-charts", min_width=0):
        panel("stage", "This step", "", "stage/stage.js")
        panel("pair", "Before and after", "", "live/pair.js")
        panel("itl", "Inter-token latency", "ms, one dot per token", "live/itl.js")
        panel("tokens", "Tokens per step", "width = time", "live/tokens.js")
        panel("blockmap", "KV blocks", "", "live/blockmap.js")
        panel("replicas", "Replicas", "", "live/replicas.js")
        panel("absent", "Server", "all its clients, and what it does not report", "live/absent.js")
