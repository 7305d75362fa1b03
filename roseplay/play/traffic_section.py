"""The rail's Traffic section: bursts and Stop all, steady traffic, and traffic from a file."""

from __future__ import annotations

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
from roseplay.play.controls import slider, stop_slider
from roseplay.play.markup import OWN, STEADY, html, section
from roseplay.play.stops import RATE
from roseplay.play.web import assets
from roseplay.play.web.calls import EVENT


def traffic_section() -> None:
    with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-traffic"):
        section("Traffic", "", "traffic")
        slider("Burst size", "load", 1, MAX_SIZE, DEFAULT_BURST, "burst-size")
        length = slider(
            "Answer length", "duration", ANSWER_STEP, 256, DEFAULT_ANSWER, "answer-length", step=ANSWER_STEP
        )
        gr.Radio(
            list(LABELS.values()), value=LABELS[DEFAULT_KIND], label="Prompts", show_label=False, container=False,
            min_width=0, elem_id="mix", interactive=True,
        )  # fmt: skip
        burst = gr.Button("Burst", variant="primary", min_width=0, elem_id="burst", elem_classes="rp-key")
        stop = gr.Button("Stop all", min_width=0, elem_id="stop", elem_classes="rp-key")
        html(STEADY, elem_id="rp-steady", js_on_load=assets.mount("live/steady.js"))
        stop_slider("Rate", "requests/s", RATE, DEFAULT_RATE, "steady-rate")
        html(OWN, elem_id="rp-own", js_on_load=assets.mount("live/owntraffic.js"))
        limits = html("", elem_id="rp-limits", js_on_load=assets.mount("live/traffic.js", "limit"))
    for button, function in ((burst, "onBurst"), (stop, "onStop")):
        button.click(None, None, None, js=assets.call("live/traffic.js", function), **EVENT)
    limits.limit(None, None, length, js=assets.call("live/traffic.js", "answerLimit"), **EVENT)
