"""The rail's section Traffic: bursts and Stop all, steady traffic, and traffic from a file."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import Any

import gradio as gr

from roseplay.play.bursts import (
    ANSWER_STEP,
    DEFAULT_ANSWER,
    DEFAULT_BURST,
    DEFAULT_KIND,
    DEFAULT_RATE,
    LABELS,
    MAX_SIZE,
)
from roseplay.play.controls import StopSlider, slider
from roseplay.play.markup import OWN, STEADY, html, section
from roseplay.play.playground import Playground
from roseplay.play.session import check_tab_id
from roseplay.play.settings import whole_number
from roseplay.play.stops import RATE
from roseplay.play.web import assets
from roseplay.play.web.calls import EVENT, refusals_on_page


class TrafficSection:
    """Builds the section where it is made; ``wire`` connects its buttons."""

    def __init__(self, playground: Playground) -> None:
        self._playground = playground
        with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-traffic"):
            section("Traffic", "", "traffic")
            self.size = slider("Burst size", "load", 1, MAX_SIZE, DEFAULT_BURST, "burst-size")
            self.length = slider(
                "Answer length", "duration", ANSWER_STEP, 256, DEFAULT_ANSWER, "answer-length", step=ANSWER_STEP
            )
            self.kind = gr.Radio(
                list(LABELS.values()), value=LABELS[DEFAULT_KIND], label="Prompts", show_label=False, container=False,
                min_width=0, elem_id="mix", elem_classes="rp-seg", interactive=True,
            )  # fmt: skip
            self.burst = gr.Button("Burst", variant="primary", min_width=0, elem_id="burst", elem_classes="rp-key")
            self.stop = gr.Button("Stop all", min_width=0, elem_id="stop", elem_classes="rp-key")
            events = ("ask", "show", "tell")
            self.steady = html(STEADY, elem_id="rp-steady", js_on_load=assets.mount("live/steady.js", *events))
            self.rate = StopSlider("Rate", "requests / s", RATE, DEFAULT_RATE, "steady-rate")
            html(OWN, elem_id="rp-own", js_on_load=assets.mount("live/owntraffic.js"))
            self.tab = gr.Textbox(visible=False)
        self.paced = [self.length, self.size, *self.rate.shows]  # in the order of ``traffic`` in live/knobs.js

    def wire(self) -> None:
        inputs = [self.size, self.length, self.kind, self.tab]
        js = assets.call("shared/tab.js", "withTab")
        event: dict[str, Any] = {"trigger_mode": "multiple", **EVENT}
        self.burst.click(self._burst, inputs, None, js=js, api_name="_burst", **event)
        self._wire_steady()
        own = assets.call("shared/tab.js", "ownTab")
        self.stop.click(self._stop, self.tab, None, js=own, api_name="_stop", **event)

    def _wire_steady(self) -> None:
        names = ("changed", "answered", "controlValues")
        changed, answered, shown = (assets.call("live/steady.js", name) for name in names)
        for used in (self.rate.wire_sliding(), self.rate.wire_typing(self._typed, self.rate.shows)):
            used.then(None, None, None, js=changed, **EVENT)
        asked = self.steady.ask(self._steady, None, None, api_name="_steady", trigger_mode="multiple", **EVENT)
        asked.then(None, None, None, js=answered, **EVENT)
        self.steady.show(None, None, [*self.rate.shows, self.length, self.kind], js=shown, **EVENT)
        self.steady.tell(self._tell, None, None, api_name="_steady_stopped", **EVENT)

    def _typed(self, place: Any, text: Any) -> list[Any]:
        """The rate that was typed, or where it cannot be, that of the slider."""
        try:
            rate: Any = RATE.parse(text)
        except ValueError as error:
            gr.Warning(str(error))
            rate = RATE.values[whole_number(place, "the place")]
        return self.rate.showing(rate)

    async def _steady(self, event: gr.EventData) -> None:
        """Begin steady traffic, change it, or with ``on`` false end it."""
        names = ("on", "rate", "spacing", "kind", "length", "tab")
        asked: dict[str, Any] = {name: getattr(event, name, None) for name in names}
        with refusals_on_page():
            tab = check_tab_id(asked["tab"])
            if not asked["on"]:
                self._playground.traffic.stop("steady", tab)
                return
            how: dict[str, Any] = {name: asked[name] for name in ("spacing", "kind")}
            how |= {
                "rate": RATE.parse(asked["rate"]),
                "max_new_tokens": whole_number(asked["length"], "the answer length"),
            }
            start = partial(self._playground.traffic.start_steady, seed=None, tab_id=tab, **how)
            await self._playground.submissions.run(start)

    def _tell(self, event: gr.EventData) -> None:
        """Say why it stopped by itself."""
        with refusals_on_page():
            steady = self._playground.tabs.open(check_tab_id(getattr(event, "tab", None))).traffic.get("steady")
        reason = steady.figures()["stopped"] if steady else "the server no longer knew this tab"
        if reason:
            gr.Warning(f"Steady traffic stopped: {escape(reason, quote=False)}.")

    async def _burst(self, size: Any, length: Any, kind: Any, tab: Any) -> None:
        with refusals_on_page():
            wanted, tokens = whole_number(size, "the burst size"), whole_number(length, "the answer length")
            how = {"max_new_tokens": tokens, "kind": kind, "seed": None, "tab_id": tab}
            burst = await self._playground.submissions.run(partial(self._playground.burst, size=wanted, **how))
        if burst.size < wanted:
            gr.Warning(f"The engine took {burst.size} of {wanted} requests: too many wait already.")

    def _stop(self, tab: Any) -> None:
        with refusals_on_page():
            check_tab_id(tab)
            self._playground.stop(tab_id=tab)
