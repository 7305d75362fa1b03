"""The rail's Traffic section: bursts and Stop all, steady traffic, and traffic from a file."""

from __future__ import annotations

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
from roseplay.play.page_host import PageHost
from roseplay.play.session import check_tab_id
from roseplay.play.steady import LEAST_RATE, MOST_RATE, check_rate
from roseplay.play.stops import RATE
from roseplay.play.web import assets
from roseplay.play.web.calls import EVENT, refusals_as_errors, warn


class TrafficSection:
    """Builds the section where it is created; ``wire`` connects its buttons."""

    def __init__(self, host: PageHost) -> None:
        self._host = host
        with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-traffic"):
            section("Traffic", "", "traffic")
            self.size = slider("Burst size", "load", 1, MAX_SIZE, DEFAULT_BURST, "burst-size")
            self.length = slider(
                "Answer length", "duration", ANSWER_STEP, 256, DEFAULT_ANSWER, "answer-length", step=ANSWER_STEP
            )
            self.kind = gr.Radio(
                list(LABELS.values()), value=LABELS[DEFAULT_KIND], label="Prompts", show_label=False, container=False,
                min_width=0, elem_id="mix", interactive=True,
            )  # fmt: skip
            self.burst = gr.Button("Burst", variant="primary", min_width=0, elem_id="burst", elem_classes="rp-key")
            self.stop = gr.Button("Stop all", min_width=0, elem_id="stop", elem_classes="rp-key")
            self.steady = html(STEADY, elem_id="rp-steady", js_on_load=assets.mount("live/steady.js", "show", "tell"))
            self.rate = StopSlider("Rate", "requests/s", RATE, DEFAULT_RATE, "steady-rate")
            html(OWN, elem_id="rp-own", js_on_load=assets.mount("live/owntraffic.js"))
        self.paced = [self.length, self.size, *self.rate.shows]  # in the order of ``traffic`` in live/knobs.js

    def wire(self) -> None:
        press = ("shared/endpoints.js", "press")
        burst = assets.call(*press, "burst", "size,max_new_tokens,kind")
        self.burst.click(None, [self.size, self.length, self.kind], None, js=burst, **EVENT)
        self.stop.click(None, None, None, js=assets.call(*press, "stop", ""), **EVENT)
        names = ("slid", "changed", "controlValues")
        slid, changed, shown = (assets.call("live/steady.js", name) for name in names)
        self.rate.slider.input(None, self.rate.slider, self.rate.box, js=slid, **EVENT)
        # Queued, since only then do warnings reach the user.
        typed = gr.on(
            [self.rate.box.submit, self.rate.box.blur], self._typed, self.rate.shows, self.rate.shows, **EVENT
        )  # fmt: skip
        typed.then(None, None, None, js=changed, **EVENT)
        self.steady.show(None, None, [*self.rate.shows, self.length, self.kind], js=shown, **EVENT)
        self.steady.tell(self._tell, None, None, **EVENT)

    def _typed(self, place: Any, text: Any) -> list[Any]:
        """Returns the rate that was typed or, if that is invalid, the slider's."""
        try:
            rate: Any = check_rate(float(str(text)))
        except ValueError:
            warn(f"The rate must be from {LEAST_RATE:g} to {MOST_RATE:g}.")
            rate = RATE.values[int(place)]
        return [RATE.place(rate), RATE.text(rate)]

    def _tell(self, event: gr.EventData) -> None:
        """Show a warning on why steady traffic stopped by itself."""
        with refusals_as_errors():
            steady = self._host.playground.tabs.open(check_tab_id(getattr(event, "tab", None))).traffic.get("steady")
        reason = steady.figures()["stopped"] if steady else "the server no longer knew this tab"
        if reason:
            warn(f"Steady traffic stopped: {reason}.")
