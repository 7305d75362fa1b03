"""The rail's sliders, choices and switches for the engine's knobs.

``live/knobs.js`` sends what the user enters. Another tab or a program may also change a knob. The page learns of this
from its poll, and the script moves the controls once the user is not holding them.
"""

from __future__ import annotations

import gradio as gr

from roseplay.config import Knobs
from roseplay.play.markup import MORE_BUTTON, html, section
from roseplay.play.page_host import PageHost
from roseplay.play.stops import Stops, stops_of
from roseplay.settings import Choice, Switch, settings_of

SETTINGS = settings_of(Knobs)
# Slow motion has a control of its own.
_CONTROLLED = [knob for knob in SETTINGS if SETTINGS[knob].control and knob != "slow_motion"]
_RARE = ("chunk_max_tokens", "max_overtakes", "prefill_interval", "pinned_blocks", "speculative_tokens")


def _is(knob: str, *kinds: type) -> bool:
    return isinstance(SETTINGS[knob].values, kinds)


# The prefill budget is a share of a step's tokens: one stands above the other.
_SCHEDULER = sorted(
    (knob for knob in _CONTROLLED if knob not in _RARE and not _is(knob, Switch, Choice)),
    key=lambda knob: "max_tokens" not in knob,
)
# Those that save prompt tokens come first.
_OPTIMISATIONS = sorted(
    (knob for knob in _CONTROLLED if _is(knob, Switch) and not SETTINGS[knob].needs),
    key=lambda knob: knob not in ("prefix_cache", "same_step_sharing"),
)
# In a section that is closed at first, from which the page moves switches to the others where they can act.
_MORE = sorted(
    (knob for knob in _CONTROLLED if knob not in (*_SCHEDULER, *_OPTIMISATIONS)),
    key=lambda knob: (_is(knob, Switch), _is(knob, Choice)),
)
IDS = {knob: SETTINGS[knob].control for knob in (*_SCHEDULER, *_MORE, *_OPTIMISATIONS, "slow_motion")}
_SLOW_FACTOR = 10


def slider_stops() -> dict[str, Stops]:
    """Returns the positions of the sliders whose positions are not evenly spaced, by knob."""
    return {knob: stops for knob in IDS if (stops := stops_of(knob))}


def slider(
    label: str, hint: str, low: float, high: float, value: float, name: str, *, step: float = 1, bare: bool = False
) -> gr.Slider:
    """Returns a slider in the page's style; with ``bare``, without its number box."""
    classes = ["rp-slider", "rp-nonum"] if bare else ["rp-slider"]
    return gr.Slider(
        low, high, value, step=step, label=label, info=hint, buttons=[], min_width=0, interactive=True, elem_id=name,
        elem_classes=classes,
    )  # fmt: skip


def switch(label: str, hint: str, on: bool, name: str) -> gr.Checkbox:
    return gr.Checkbox(
        on,
        label=label,
        info=hint,
        container=False,
        min_width=0,
        elem_id=name,
        elem_classes=["rp-switch"],
        interactive=True,
    )


def number_box(value: str, label: str, name: str) -> gr.Textbox:
    """Returns a small text field that replaces a slider's own number box."""
    return gr.Textbox(
        value, label=label, container=False, show_label=False, min_width=0, elem_id=name, elem_classes="rp-num", max_lines=1,
        interactive=True,
    )  # fmt: skip


def stop_slider(label: str, hint: str, stops: Stops, value: float | None, name: str) -> None:
    """Make a slider over the positions of ``Stops``, and a box for values in between."""
    with gr.Row(elem_id=f"rp-{name}-row", elem_classes=["rp-pair", "rp-stops"]):
        slider(label, hint, 0, len(stops.values) - 1, stops.place(value), name, bare=True)
        number_box(stops.text(value), f"{label}, value", f"{name}-value")
    if stops.marks:
        html(stops.ticks(), elem_id=f"rp-{name}-ticks")


def _knob(host: PageHost, knob: str) -> None:
    """Make the control of a knob: a switch, a choice between words, or a slider."""
    setting, value, stops = SETTINGS[knob], host.knobs()[knob], stops_of(knob)
    label, hint, name = setting.label, setting.hint, IDS[knob]
    if isinstance(setting.values, Switch):
        switch(label, hint, value, name)
    elif isinstance(setting.values, Choice):
        words = setting.values.options
        gr.Radio(
            list(zip(setting.values.shown or words, words, strict=True)), value=value, label=label, info=hint, min_width=0,
            elem_id=name, elem_classes="rp-choices", interactive=True,
        )  # fmt: skip
    elif stops:
        stop_slider(label, hint, stops, value, name)
    else:
        slider(label, hint, getattr(setting.values, "least", None) or 0, max(64, value), value, name)


def _slow_motion(host: PageHost) -> None:
    """Make the control for slow motion: a switch, and a box for the factor."""
    setting, value = SETTINGS["slow_motion"], host.knobs()["slow_motion"]
    with gr.Row(elem_id="rp-slow-row", elem_classes="rp-pair"):
        switch(setting.label, "", value > 1, IDS["slow_motion"])
        factor = value if value > 1 else _SLOW_FACTOR
        number_box(f"×{factor:g}", f"{setting.label}, {setting.unit}", "slow-factor")


def knob_sections(host: PageHost) -> None:
    """Make the sections Scheduler, More settings and Optimisations."""
    with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-sched"):
        section("Scheduler", "acts on the next step", "sched")
        for knob in _SCHEDULER:
            _knob(host, knob)
    with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-more-knobs"):
        html(MORE_BUTTON, elem_id="rp-more-head")
        for knob in _MORE:
            _knob(host, knob)
    with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-opt"):
        section("Optimisations", "", "opt")
        for knob in _OPTIMISATIONS:
            _knob(host, knob)
        _slow_motion(host)
