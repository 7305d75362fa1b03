"""The rail's section Traffic: bursts, and Stop all."""

from __future__ import annotations

from functools import partial
from typing import Any

import gradio as gr

from roseplay.play.bursts import LABELS, MAX_SIZE
from roseplay.play.controls import slider
from roseplay.play.markup import section
from roseplay.play.playground import Playground
from roseplay.play.session import check_tab_id
from roseplay.play.settings import whole_number
from roseplay.play.web import assets
from roseplay.play.web.calls import EVENT, refusals_on_page

DEFAULT_BURST = 20
DEFAULT_RATE = 4.0
DEFAULT_ANSWER = 64


class TrafficSection:
    """Builds the section where it is made; ``wire`` connects its buttons."""

    def __init__(self, playground: Playground) -> None:
        self._playground = playground
        with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-traffic"):
            section("Traffic", "", "traffic")
            self.size = slider("Burst size", "load", 1, MAX_SIZE, DEFAULT_BURST, "burst-size")
            self.length = slider("Answer length", "duration", 16, 256, DEFAULT_ANSWER, "answer-length", step=16)
            self.kind = gr.Radio(
                list(LABELS.values()), value=LABELS["shared_head"], label="Prompts", show_label=False, container=False,
                min_width=0, elem_id="mix", elem_classes="rp-seg", interactive=True,
            )  # fmt: skip
            self.burst = gr.Button("Burst", variant="primary", min_width=0, elem_id="burst", elem_classes="rp-key")
            self.stop = gr.Button("Stop all", min_width=0, elem_id="stop", elem_classes="rp-key")
            self.tab = gr.Textbox(visible=False)

    def wire(self) -> None:
        inputs = [self.size, self.length, self.kind, self.tab]
        js = assets.call("shared/tab.js", "withTab")
        event: dict[str, Any] = {"trigger_mode": "multiple", **EVENT}
        self.burst.click(self._burst, inputs, None, js=js, api_name="_burst", **event)
        own = assets.call("shared/tab.js", "ownTab")
        self.stop.click(self._stop, self.tab, None, js=own, api_name="_stop", **event)

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
