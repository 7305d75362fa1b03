"""The sampling panel: how answers are sampled, in all lanes or in one. It opens from the prompt bar, above the steps.

Gradio provides the controls; ``sampling.js`` sends their input to ``POST /ui/sampling``, one request after the other,
and shows the reply. Gradio's own events are not ordered: each uses its own connection, so an older reply may come last
and undo what has been typed meanwhile.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from roseplay.config import SamplingParams
from roseplay.play.answer_settings import MAX_SYSTEM_CHARS, Settings
from roseplay.play.controls import slider
from roseplay.play.markup import html
from roseplay.play.web import assets
from roseplay.play.web.calls import EVENT
from roseplay.recording.schema import MAX_LANES
from roseplay.settings import settings_of

ALL = "all lanes"
_CROSS = (
    '<div class="rp-samp-head"><h3>Sampling</h3><button type="button" aria-label="Close" title="Close (Esc)">'
    '<svg width="10" height="10" aria-hidden="true"><path d="M1 1l8 8M9 1l-8 8" stroke="currentColor" stroke-width="1.4"/>'
    "</svg></button></div>"
)


class SamplingPanel:
    """Controls for the settings that the server keeps for the tab, in the order of ``FIELDS`` in sampling.js."""

    def __init__(self) -> None:
        now = Settings()
        with gr.Column(elem_id="rp-sampling", min_width=0):
            self.head = html(_CROSS, elem_id="rp-sampling-head", js_on_load=assets.mount("lanes/sampling.js", "show"))
            with gr.Row(elem_id="rp-sampling-for"):
                self.lane = gr.Dropdown(
                    [ALL, *(f"lane {n}" for n in range(1, MAX_LANES + 1))], value=ALL, label="Applies to", container=False,
                    show_label=False, filterable=False, min_width=0, elem_id="sampling-lane", elem_classes="rp-drop",
                    interactive=True,
                )  # fmt: skip
                self.reset = gr.Button("Defaults", min_width=0, elem_id="sampling-reset", interactive=False)
            system = ("System prompt", "before every chat", "sampling-system")
            self.fields: dict[str, Any] = {
                "system": _text(*system, lines=2, max_length=MAX_SYSTEM_CHARS),
                "temperature": _slide("temperature", 0, 2, now.temperature, 0.05),
                "top_p": _slide("top_p", 0.05, 1, now.top_p, 0.05),
                "top_k": _slide("top_k", 0, 200, 0, 1),
                "min_p": _slide("min_p", 0, 1, now.min_p, 0.01),
                "repetition_penalty": _slide("repetition_penalty", 0.5, 2, 1, 0.05),
                "max_new_tokens": _slide("max_new_tokens", 1, now.max_new_tokens, now.max_new_tokens, 1),
                "seed": _text(*_words("seed")),
                "stop": _text(*_words("stop"), lines=2),
                "priority": _text(*_words("priority")),
                "tenant": _text(*_words("tenant")),
            }
        self.lane.input(None, self.lane, None, js=assets.call("lanes/sampling.js", "chosen"), **EVENT)
        self.head.show(
            None, None, [*self.fields.values(), self.reset], js=assets.call("lanes/sampling.js", "shown"), **EVENT
        )


def _words(name: str) -> tuple[str, str, str]:
    """Returns label, hint and element id of a setting's control."""
    setting = settings_of(SamplingParams)[name]
    return setting.label, setting.hint, setting.control


def _slide(name: str, low: float, high: float, value: float, step: float) -> gr.Slider:
    label, hint, control = _words(name)
    return slider(label, hint, low, high, value, control, step=step)


def _text(label: str, hint: str, control: str, *, lines: int = 1, max_length: int | None = None) -> gr.Textbox:
    return gr.Textbox(
        "", label=label, info=hint, lines=lines, max_lines=lines, max_length=max_length, min_width=0, elem_id=control,
        elem_classes="rp-words", interactive=True,
    )  # fmt: skip
