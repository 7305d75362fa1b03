"""The rail's sliders and switches for the engine's knobs.

A knob may also change elsewhere, in another tab or by a program. The page learns of it from its poll, and ``live/knobs.js``
moves the controls through the event ``sync`` as soon as the user does not hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from roseplay.config import Knobs
from roseplay.play.markup import html, section
from roseplay.play.playground import Playground
from roseplay.play.stops import Stops, stops_of
from roseplay.play.web import assets
from roseplay.play.web.calls import EVENT
from roseplay.settings import Switch, Whole, settings_of

QUIET: dict[str, Any] = {"queue": False, **EVENT}
SETTINGS = settings_of(Knobs)
# The knobs that have a control. What saves prompt tokens stands first among the switches; slow motion is of both kinds.
_CONTROLLED = tuple(knob for knob in SETTINGS if SETTINGS[knob].control and knob != "slow_motion")
_SAVING = ("prefix_cache", "same_step_sharing")
SLIDERS = tuple(knob for knob in _CONTROLLED if not isinstance(SETTINGS[knob].values, Switch))
SWITCHES = tuple(sorted((knob for knob in _CONTROLLED if knob not in SLIDERS), key=lambda knob: knob not in _SAVING))
IDS = {knob: SETTINGS[knob].control for knob in (*SLIDERS, *SWITCHES, "slow_motion")}
SLOW_FACTOR = 10


def slider_stops() -> dict[str, Stops]:
    """Returns the positions of sliders by knob, where they are not even."""
    found = {knob: stops_of(knob, SETTINGS[knob]) for knob in SLIDERS}
    return {knob: stops for knob, stops in found.items() if stops}


def slider(
    label: str,
    hint: str,
    low: float,
    high: float,
    value: float,
    name: str,
    *,
    step: float = 1,
    bare: bool = False,
) -> gr.Slider:
    """A slider in the page's style; ``bare``: without its number box."""
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
    """A small text field in place of a slider's own number box."""
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

    def wire_sliding(self) -> Any:
        """Have the box follow the slider; returns the event."""
        slide = assets.call("live/knobs.js", "slid", self.name)
        return self.slider.input(None, self.slider, self.box, js=slide, **EVENT)

    def wire_typing(self, typed: Callable[..., Any], inputs: list[Any]) -> Any:
        """Call ``typed`` for the values of slider and box when Enter or leaving the box ends typing; returns the event."""
        # Queued, since only then a warning reaches the user.
        name = f"_{self.name.replace('-', '_')}_typed"
        return gr.on([self.box.submit, self.box.blur], typed, inputs, self.shows, api_name=name, **EVENT)

    def showing(self, value: float | None) -> list[Any]:
        """Returns what slider and box are to show for a value."""
        return [self.stops.place(value), self.stops.text(value)]


class KnobSlider(StopSlider):
    """One for a knob."""

    def __init__(self, playground: Playground, knob: str, stops: Stops) -> None:
        setting = SETTINGS[knob]
        super().__init__(setting.label, setting.hint, stops, playground.knobs()[knob], IDS[knob])
        self._playground, self._knob = playground, knob

    def wire(self) -> None:
        self.wire_sliding()
        name = f"_{self.name.replace('-', '_')}_slid"
        self.slider.input(self._slid, self.slider, None, trigger_mode="always_last", api_name=name, **QUIET)
        self.wire_typing(self._typed, [self.box])

    def _slid(self, place: float) -> None:
        self._set(self.stops.values[int(place)])

    def _typed(self, text: str) -> list[Any]:
        try:
            self._set(self.stops.parse(text))
        except ValueError as error:
            gr.Warning(str(error))
        return self.showing(self._playground.knobs()[self._knob])

    def _set(self, value: float | None) -> None:
        if self._playground.knobs()[self._knob] != value:
            self._playground.set_knobs({self._knob: value})


class PlainControl:
    """A switch, or a slider on which each whole number has its place, for one knob."""

    def __init__(self, playground: Playground, knob: str) -> None:
        self._playground, self._knob = playground, knob
        setting, name, value = SETTINGS[knob], IDS[knob], playground.knobs()[knob]
        if not isinstance(setting.values, Switch):
            least = getattr(setting.values, "least", None) or 0
            made: Any = slider(setting.label, setting.hint, least, max(64, value), value, name)
        else:
            made = switch(setting.label, setting.hint, value, name)
        self._whole = isinstance(setting.values, Whole)
        self.shows = [made]

    def wire(self) -> None:
        name = IDS[self._knob].replace("-", "_")
        (made,) = self.shows
        made.input(self._changed, made, None, trigger_mode="always_last", api_name=f"_{name}", **QUIET)

    def _changed(self, value: Any) -> None:
        # An empty number box sends None: the knob stays as it is until there is a number.
        if value is not None:
            self._playground.set_knobs({self._knob: int(value) if self._whole else value})


class SlowMotion:
    """A switch, and a box for the factor."""

    def __init__(self, playground: Playground) -> None:
        self._playground = playground
        setting, value = SETTINGS["slow_motion"], playground.knobs()["slow_motion"]
        with gr.Row(elem_id="rp-slow-row", elem_classes="rp-pair"):
            self.slow = switch(setting.label, "", value > 1, IDS["slow_motion"])
            factor = value if value > 1 else SLOW_FACTOR
            self.factor = number_box(f"×{factor:g}", f"{setting.label}, {setting.unit}", "slow-factor")
        self.shows = [self.slow, self.factor]

    def wire(self) -> None:
        self.slow.input(self._switched, self.shows, None, trigger_mode="always_last", api_name="_slow_motion", **QUIET)
        gr.on(
            [self.factor.submit, self.factor.blur],
            *(self._typed, self.factor, self.factor),
            api_name="_slow_factor",
            **EVENT,
        )

    def _switched(self, on: bool, text: str) -> None:
        self._playground.set_knobs({"slow_motion": (_factor(text) or SLOW_FACTOR) if on else 1.0})

    def _typed(self, text: str) -> str:
        """Change the factor if slow motion is on in the engine: the switch itself may be ahead of its event."""
        factor, now = _factor(text), self._playground.knobs()["slow_motion"]
        if factor is None:
            gr.Warning("Slow motion takes a number above 1, at most 1000.")
            factor = now if now > 1 else SLOW_FACTOR
        elif now > 1 and now != factor:
            self._playground.set_knobs({"slow_motion": factor})
        return f"×{factor:g}"


class Controls:
    """The sections Scheduler and Optimisations."""

    def __init__(self, playground: Playground) -> None:
        self._controls: list[KnobSlider | PlainControl | SlowMotion] = []
        with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-sched"):
            section("Scheduler", "acts on the next step", "sched")
            uneven = slider_stops()
            for knob in SLIDERS:
                stops = uneven.get(knob)
                self._controls.append(KnobSlider(playground, knob, stops) if stops else PlainControl(playground, knob))
        with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-opt"):
            section("Optimisations", "", "opt")
            self._controls += [PlainControl(playground, knob) for knob in SWITCHES]
            self._controls.append(SlowMotion(playground))
        self.sync = html("", elem_id="rp-sync", js_on_load=assets.mount("live/knobs.js", "sync"))

    def wire(self, traffic: list[Any]) -> None:
        """Connect the controls; those of ``traffic`` follow the model's pace and context, which the page learns later."""
        for control in self._controls:
            control.wire()
        shown = [*(element for control in self._controls for element in control.shows), *traffic]
        self.sync.sync(None, None, shown, js=assets.call("live/knobs.js", "controlValues"), api_name="_sync", **QUIET)


def _factor(text: str) -> float | None:
    """Returns ``×4`` or ``4`` as a number; ``None`` if slow motion cannot have it."""
    try:
        factor = float(str(text).strip().lstrip("×xX"))
    except ValueError:
        return None
    return factor if 1 < factor <= 1000 else None
