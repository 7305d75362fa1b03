"""The rail's sliders, choices and switches for the engine's knobs.

Each calls ``/set_knobs`` through ``live/knobs.js``. Another tab or a program may also change a knob. The page learns of
this from its poll, and the script moves the controls through the event ``sync`` once the user is not holding them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from roseplay.config import Knobs
from roseplay.play.markup import MORE_BUTTON, html, section
from roseplay.play.page_host import PageHost
from roseplay.play.stops import Stops, stops_of
from roseplay.play.web import assets
from roseplay.play.web.calls import EVENT
from roseplay.settings import Choice, Switch, settings_of

SETTINGS = settings_of(Knobs)
# The knobs that have a control. Switches that save prompt tokens come first; slow motion has a control of its own.
_CONTROLLED = tuple(knob for knob in SETTINGS if SETTINGS[knob].control and knob != "slow_motion")
_SAVING = ("prefix_cache", "same_step_sharing")
# In a section of their own, which is closed at first.
_MORE = ("scheduling_policy", "max_overtakes", "prefill_interval", "pinned_blocks", "speculative_tokens")
_NUMBERS = tuple(knob for knob in _CONTROLLED if not isinstance(SETTINGS[knob].values, Switch | Choice))
# The prefill budget is a share of a step's tokens: one stands above the other.
SLIDERS = tuple(sorted(_NUMBERS, key=lambda knob: (knob in _MORE, "max_tokens" not in knob)))
CHOICES = tuple(knob for knob in _CONTROLLED if isinstance(SETTINGS[knob].values, Choice))
_ON_OFF = tuple(knob for knob in _CONTROLLED if isinstance(SETTINGS[knob].values, Switch))
SWITCHES = tuple(sorted(_ON_OFF, key=lambda knob: (knob not in _SAVING, bool(SETTINGS[knob].needs))))
IDS = {knob: SETTINGS[knob].control for knob in (*SLIDERS, *CHOICES, *SWITCHES, "slow_motion")}
SLOW_FACTOR = 10


def slider_stops() -> dict[str, Stops]:
    """Returns the positions of the sliders whose positions are not evenly spaced, by knob."""
    found = {knob: stops_of(knob) for knob in SLIDERS}
    return {knob: stops for knob, stops in found.items() if stops}


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


def choices(label: str, hint: str, options: Sequence[tuple[str, str]], value: str, name: str) -> gr.Radio:
    """Returns a list of words in a row, one of which is chosen; ``options`` are the words and their values."""
    return gr.Radio(
        list(options), value=value, label=label, info=hint, min_width=0, elem_id=name, elem_classes="rp-choices",
        interactive=True,
    )  # fmt: skip


def number_box(value: str, label: str, name: str) -> gr.Textbox:
    """Returns a small text field that replaces a slider's own number box."""
    return gr.Textbox(
        value, label=label, container=False, show_label=False, min_width=0, elem_id=name, elem_classes="rp-num", max_lines=1,
        interactive=True,
    )  # fmt: skip


class StopSlider:
    """A slider over the positions of ``Stops``, and a box for values in between."""

    def __init__(self, label: str, hint: str, stops: Stops, value: float | None, name: str) -> None:
        self.stops, self.name = stops, name
        with gr.Row(elem_id=f"rp-{name}-row", elem_classes=["rp-pair", "rp-stops"]):
            self.slider = slider(label, hint, 0, len(stops.values) - 1, stops.place(value), name, bare=True)
            self.box = number_box(stops.text(value), f"{label}, value", f"{name}-value")
        if stops.marks:
            html(stops.ticks(), elem_id=f"rp-{name}-ticks")
        self.shows = [self.slider, self.box]


class KnobSlider(StopSlider):
    """A ``StopSlider`` for a knob."""

    def __init__(self, host: PageHost, knob: str, stops: Stops) -> None:
        setting = SETTINGS[knob]
        super().__init__(setting.label, setting.hint, stops, host.knobs()[knob], IDS[knob])
        self._knob = knob

    def wire(self) -> None:
        slid, typed = (assets.call("live/knobs.js", name, self._knob) for name in ("slid", "typed"))
        self.slider.input(None, self.slider, self.box, js=slid, **EVENT)
        gr.on([self.box.submit, self.box.blur], None, self.box, self.shows, js=typed, **EVENT)


class PlainControl:
    """A switch, a choice between words, or a slider over all whole numbers, for one knob."""

    def __init__(self, host: PageHost, knob: str) -> None:
        setting, name, value = SETTINGS[knob], IDS[knob], host.knobs()[knob]
        if isinstance(setting.values, Choice):
            words = setting.values.options
            shown = list(zip(setting.values.shown or words, words, strict=True))
            made: Any = choices(setting.label, setting.hint, shown, value, name)
        elif not isinstance(setting.values, Switch):
            least = getattr(setting.values, "least", None) or 0
            made = slider(setting.label, setting.hint, least, max(64, value), value, name)
        else:
            made = switch(setting.label, setting.hint, value, name)
        self._knob, self.shows = knob, [made]

    def wire(self) -> None:
        (made,) = self.shows
        made.input(None, made, None, js=assets.call("live/knobs.js", "changed", self._knob), **EVENT)


def _slider(host: PageHost, knob: str) -> KnobSlider | PlainControl:
    stops = stops_of(knob)
    return KnobSlider(host, knob, stops) if stops else PlainControl(host, knob)


class SlowMotion:
    """The control for slow motion: a switch, and a box for the factor."""

    def __init__(self, host: PageHost) -> None:
        setting, value = SETTINGS["slow_motion"], host.knobs()["slow_motion"]
        with gr.Row(elem_id="rp-slow-row", elem_classes="rp-pair"):
            self.slow = switch(setting.label, "", value > 1, IDS["slow_motion"])
            factor = value if value > 1 else SLOW_FACTOR
            self.factor = number_box(f"×{factor:g}", f"{setting.label}, {setting.unit}", "slow-factor")
        self.shows = [self.slow, self.factor]

    def wire(self) -> None:
        slowed, typed = (assets.call("live/knobs.js", name) for name in ("slowed", "factorTyped"))
        self.slow.input(None, self.shows, None, js=slowed, **EVENT)
        gr.on([self.factor.submit, self.factor.blur], None, self.factor, self.factor, js=typed, **EVENT)


class Controls:
    """The sections Scheduler, More settings and Optimisations."""

    def __init__(self, host: PageHost) -> None:
        self._controls: list[KnobSlider | PlainControl | SlowMotion] = []
        with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-sched"):
            section("Scheduler", "acts on the next step", "sched")
            self._controls += [_slider(host, knob) for knob in SLIDERS if knob not in _MORE]
        with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-more-knobs"):
            html(MORE_BUTTON, elem_id="rp-more-head")
            chosen = [PlainControl(host, knob) for knob in CHOICES]
            self._controls += [*(_slider(host, knob) for knob in SLIDERS if knob in _MORE), *chosen]
            # The page moves them to the others where they can act.
            needy = [PlainControl(host, knob) for knob in SWITCHES if SETTINGS[knob].needs]
        with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-opt"):
            section("Optimisations", "", "opt")
            self._controls += [*(PlainControl(host, knob) for knob in SWITCHES if not SETTINGS[knob].needs), *needy]
            self._controls.append(SlowMotion(host))
        self.sync = html("", elem_id="rp-sync", js_on_load=assets.mount("live/knobs.js", "sync"))

    def wire(self, traffic: list[Any]) -> None:
        """Connect the controls; those of ``traffic`` adapt to the model's speed and context, known only later."""
        for control in self._controls:
            control.wire()
        shown = [*(element for control in self._controls for element in control.shows), *traffic]
        self.sync.sync(None, None, shown, js=assets.call("live/knobs.js", "controlValues"), **EVENT)
