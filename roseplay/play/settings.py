"""The sampling panel: how answers are drawn, in all lanes or in one. It opens from the prompt bar, over the steps.

Gradio gives the controls; ``sampling.js`` sends what is typed into them to ``POST /ui/sampling``, one request after the
other, and shows what it answers. Gradio's own events do neither in order: each goes over a connection of its own, so an
older answer may come last, and put back what has been typed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr
from fastapi import APIRouter, HTTPException, Response
from pydantic import BaseModel

from roseplay.play.assets import script_tags
from roseplay.play.controls import slider
from roseplay.play.lanes import MAX_LANES
from roseplay.play.markup import html
from roseplay.play.playground import Playground
from roseplay.play.sampling import MAX_SYSTEM_CHARS, Settings, defaults, read
from roseplay.play.session import check_lane
from roseplay.play.talk import Talk

ALL = "all lanes"
_CROSS = (
    '<div class="rp-samp-head"><h3>Sampling</h3><button type="button" aria-label="Close" title="Close (Esc)">'
    '<svg width="10" height="10" aria-hidden="true"><path d="M1 1l8 8M9 1l-8 8" stroke="currentColor" stroke-width="1.4"/>'
    "</svg></button></div>"
)


class SamplingPanel:
    """Gradio's own controls over the settings that the tab keeps on the server; ``FIELDS`` of sampling.js in their order."""

    def __init__(self, playground: Playground) -> None:
        longest = playground.engine.info.max_model_len
        now = defaults(longest)
        with gr.Column(elem_id="rp-sampling", min_width=0):
            scripts = script_tags(charts=False)
            show = "Rose.sampling.panel(element, () => trigger('show'))"
            self.head = html(_CROSS, elem_id="rp-sampling-head", head=scripts, js_on_load=show)
            with gr.Row(elem_id="rp-sampling-for"):
                self.lane = gr.Dropdown(
                    [ALL, *(f"lane {n}" for n in range(1, MAX_LANES + 1))], value=ALL, label="Applies to", container=False,
                    show_label=False, filterable=False, min_width=0, elem_id="sampling-lane", elem_classes="rp-drop",
                    interactive=True,
                )  # fmt: skip
                self.reset = gr.Button("Defaults", min_width=0, elem_id="sampling-reset", interactive=False)
            self.fields: dict[str, Any] = {
                "system": _text("System prompt", "before every chat", "system", lines=2, max_length=MAX_SYSTEM_CHARS),
                "temperature": _slide("Temperature", "0 greedy", 0, 2, now.temperature, "temperature", 0.05),
                "top_p": _slide("Top-p", "1 all", 0.05, 1, now.top_p, "top-p", 0.05),
                "top_k": _slide("Top-k", "0 all", 0, 200, 0, "top-k", 1),
                "min_p": _slide("Min-p", "0 off", 0, 1, now.min_p, "min-p", 0.01),
                "repetition_penalty": _slide("Repetition", "1 off", 0.5, 2, 1, "repetition", 0.05),
                "max_new_tokens": _slide("New tokens", "at most", 1, longest - 1, now.max_new_tokens, "new-tokens", 1),
                "seed": _text("Seed", "empty: any", "seed"),
                "stop": _text("Stop strings", "one a line, \\n is a line break", "stop", lines=2),
            }
        told: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        self.lane.input(None, self.lane, None, js="(lane) => Rose.sampling.chosen(lane)", **told)
        self.head.show(None, None, [*self.fields.values(), self.reset], js="() => Rose.sampling.shown()", **told)


class SettingsChange(BaseModel):
    """What the panel asks: to change settings of a lane, 0 for all lanes, or to give it those that it had before."""

    tab: str
    lane: int = 0
    changes: dict[str, Any] = {}
    reset: bool = False


def settings_router(talk: Talk) -> APIRouter:
    """``POST /ui/sampling``: takes a ``SettingsChange``, answers what holds then and what of it was refused.

    ``{"values": {name: as its control shows it}, "own": how many the lane has of its own, "refused": {name: why}}``.
    Each setting is taken or refused by itself.
    """
    router = APIRouter(prefix="/ui")

    @router.post("/sampling")
    def sampling(asked: SettingsChange, response: Response) -> dict[str, Any]:
        response.headers["Cache-Control"] = "no-store"
        try:
            if asked.reset:
                talk.reset_settings(lane=asked.lane, tab_id=asked.tab)
            refused = _change(talk, asked.changes, asked.lane, asked.tab)
            now = talk.settings(asked.tab, asked.lane)
        except ValueError as error:  # no such tab or lane
            raise HTTPException(422, str(error)) from None
        return {"values": _values(now), "own": len(talk.own_settings(asked.tab, asked.lane)), "refused": refused}

    return router


def _change(talk: Talk, changes: Mapping[str, Any], lane: int, tab: str) -> dict[str, str]:
    """Take what differs from what holds; answers what is wrong with the others."""
    check_lane(lane, least=0)
    refused = {}
    for name, value in changes.items():
        try:
            if read({name: value})[name] != getattr(talk.settings(tab, lane), name):
                talk.set_settings({name: value}, lane=lane, tab_id=tab)
        except ValueError as error:
            refused[name] = str(error)
    return refused


def _values(settings: Settings) -> dict[str, Any]:
    """As the controls show them, in their order."""
    return {
        "system": settings.system,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k or 0,
        "min_p": settings.min_p,
        "repetition_penalty": settings.repetition_penalty,
        "max_new_tokens": settings.max_new_tokens,
        "seed": "" if settings.seed is None else str(settings.seed),
        "stop": "\n".join(stop.replace("\n", "\\n") for stop in settings.stop),
    }


def _slide(label: str, hint: str, low: float, high: float, value: float, name: str, step: float) -> gr.Slider:
    return slider(label, hint, low, high, value, f"sampling-{name}", step=step)


def _text(label: str, hint: str, name: str, *, lines: int = 1, max_length: int | None = None) -> gr.Textbox:
    return gr.Textbox(
        "", label=label, info=hint, lines=lines, max_lines=lines, max_length=max_length, min_width=0,
        elem_id=f"sampling-{name}", elem_classes="rp-words", interactive=True,
    )  # fmt: skip
