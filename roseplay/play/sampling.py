"""The sampling panel: how answers are sampled, in all lanes or in one. It opens from the prompt bar, above the steps.

Gradio provides the controls; ``sampling.js`` sends their input to ``POST /ui/sampling``, one request after the other,
and shows the reply.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from roseplay.play.answer_settings import NAMES, Settings
from roseplay.play.controls import slider
from roseplay.play.markup import html
from roseplay.play.web import assets
from roseplay.play.web.calls import EVENT
from roseplay.recording.schema import MAX_LANES
from roseplay.settings import Setting, Text, settings_of

ALL = "all lanes"
_CROSS = (
    '<div class="rp-samp-head"><h3>Sampling</h3><button type="button" aria-label="Close" title="Close (Esc)">'
    '<svg width="10" height="10" aria-hidden="true"><path d="M1 1l8 8M9 1l-8 8" stroke="currentColor" stroke-width="1.4"/>'
    "</svg></button></div>"
)


def sampling_panel() -> None:
    """Make the controls for the settings that the server keeps for the tab."""
    now = Settings()
    with gr.Column(elem_id="rp-sampling", min_width=0):
        head = html(_CROSS, elem_id="rp-sampling-head", js_on_load=assets.mount("lanes/sampling.js", "limit"))
        with gr.Row(elem_id="rp-sampling-for"):
            lane = gr.Dropdown(
                [ALL, *(f"lane {n}" for n in range(1, MAX_LANES + 1))], value=ALL, label="Applies to", container=False,
                show_label=False, filterable=False, min_width=0, elem_id="sampling-lane", elem_classes="rp-drop",
                interactive=True,
            )  # fmt: skip
            reset = gr.Button("Defaults", min_width=0, elem_id="sampling-reset", interactive=False)
        fields = {name: _control(settings_of(Settings)[name], getattr(now, name)) for name in NAMES}
    lane.input(None, lane, None, js=assets.call("lanes/sampling.js", "chosen"), **EVENT)
    head.limit(None, None, [fields["max_new_tokens"], reset], js=assets.call("lanes/sampling.js", "limits"), **EVENT)


def _control(setting: Setting, value: Any) -> gr.components.Component:
    """Returns a setting's slider or text box."""
    if setting.slider is not None:
        low, high, step = setting.slider
        return slider(setting.label, setting.hint, low, high, value or low, setting.control, step=step)
    lines, most = 2 if setting.multiline else 1, setting.values.most if isinstance(setting.values, Text) else None
    return gr.Textbox(
        "", label=setting.label, info=setting.hint, lines=lines, max_lines=lines, max_length=most, min_width=0,
        elem_id=setting.control, elem_classes="rp-words", interactive=True,
    )  # fmt: skip
