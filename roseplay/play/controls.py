"""The rail's sliders and switches for the engine's knobs.

A knob may also change elsewhere, in another tab or by a program. The page learns of it from its poll, and ``live/knobs.js``
moves the controls through the event ``sync`` as soon as the user has let go of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from roseplay.config import Knobs
from roseplay.play.markup import html, section
from roseplay.play.playground import Playground
from roseplay.play.stops import BUDGET, REQUESTS, Stops
from roseplay.play.terms import KNOB_CONTROLS
from roseplay.play.web import assets
from roseplay.settings import settings_of

QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
SWITCHES = ("prefix_cache", "same_step_sharing", "chunked_prefill", "batched_append", "cuda_graphs")
SETTINGS = settings_of(Knobs)
IDS = {knob: control for control, knob in KNOB_CONTROLS.items()}
SLOW_FACTOR = 10


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
    """A slider over the positions of ``Stops``, and a box for values in between, for one knob."""

    def __init__(self, playground: Playground, knob: str, stops: Stops) -> None:
        self._playground, self._knob, self._stops = playground, knob, stops
        setting, name, value = SETTINGS[knob], IDS[knob], playground.knobs()[knob]
        self._name, last = name, len(stops.values) - 1
        with gr.Row(elem_id=f"rp-{name}-row", elem_classes="rp-pair"):
            self.slider = slider(setting.label, setting.hint, 0, last, stops.place(value), name, bare=True)
            self.box = number_box(stops.text(value), f"{setting.label}, value", f"{name}-value")

    def wire(self) -> None:
        slide = assets.call("live/knobs.js", "slid", self._name)
        self.slider.input(None, self.slider, self.box, js=slide, show_progress="hidden", api_visibility="private")
        self.slider.input(
            self._slid, self.slider, None, trigger_mode="always_last", api_name=f"_{self._name}_slid", **QUIET
        )
        # Queued, since only then a warning reaches the user. Enter and leaving the box both end typing.
        gr.on(
            [self.box.submit, self.box.blur], self._typed, self.box, [self.slider, self.box], show_progress="hidden",
            api_visibility="private", api_name=f"_{self._name}_typed",
        )  # fmt: skip

    def shown(self) -> list[Any]:
        """Returns the current values of slider and box."""
        value = self._playground.knobs()[self._knob]
        return [self._stops.place(value), self._stops.text(value)]

    def _slid(self, place: float) -> None:
        value = self._stops.values[int(place)]
        if self._playground.knobs()[self._knob] != value:
            self._playground.set_knobs({self._knob: value})

    def _typed(self, text: str) -> list[Any]:
        try:
            value = self._stops.parse(text)
            if self._playground.knobs()[self._knob] != value:
                self._playground.set_knobs({self._knob: value})
        except ValueError as error:
            gr.Warning(str(error))
        return self.shown()


class Controls:
    """The sections Scheduler and Optimisations."""

    def __init__(self, playground: Playground) -> None:
        self._playground = playground
        knobs = playground.knobs()
        with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-sched"):
            section("Scheduler", "acts on the next step", "sched")
            self.budget = StopSlider(playground, "prefill_max_tokens", BUDGET)
            html(BUDGET.ticks((16, 64, 256, 1024, None)), elem_id="rp-budget-ticks")
            top = max(64, knobs["max_batch_size"])
            batch = SETTINGS["max_batch_size"]
            self.batch = slider(batch.label, batch.hint, 1, top, knobs["max_batch_size"], IDS["max_batch_size"])
            self.requests = StopSlider(playground, "prefill_max_batch_size", REQUESTS)
        with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-opt"):
            section("Optimisations", "", "opt")
            self.switches = {knob: self._switch(knob, knobs[knob]) for knob in SWITCHES}
            with gr.Row(elem_id="rp-slow-row", elem_classes="rp-pair"):
                slow = SETTINGS["slow_motion"]
                self.slow = switch(slow.label, "", knobs["slow_motion"] > 1, IDS["slow_motion"])
                factor = knobs["slow_motion"] if knobs["slow_motion"] > 1 else SLOW_FACTOR
                self.factor = number_box(f"×{factor:g}", f"{slow.label}, {slow.unit}", "slow-factor")
        self.sync = html("", elem_id="rp-sync", js_on_load=assets.mount("live/knobs.js", "sync"))

    def _switch(self, knob: str, on: bool) -> gr.Checkbox:
        setting = SETTINGS[knob]
        return switch(setting.label, setting.hint, on, IDS[knob])

    def wire(self, answer_length: gr.Slider) -> None:
        """Connect the controls; ``answer_length`` ends where the model's context does, which the page learns later."""
        self.budget.wire()
        self.requests.wire()
        last: dict[str, Any] = {"trigger_mode": "always_last", **QUIET}
        self.batch.input(self._setter("max_batch_size"), self.batch, None, api_name="_max_batch", **last)
        for knob, box in self.switches.items():
            box.input(self._setter(knob), box, None, api_name=f"_{knob}", **last)
        self.slow.input(self._slow_switched, [self.slow, self.factor], None, api_name="_slow_motion", **last)
        gr.on(
            [self.factor.submit, self.factor.blur],
            self._slow_typed,
            self.factor,
            self.factor,
            show_progress="hidden",
            api_visibility="private",
            api_name="_slow_factor",
        )
        shown = [self.budget.slider, self.budget.box, self.requests.slider, self.requests.box, self.batch]
        shown += [*self.switches.values(), self.slow, self.factor, answer_length]
        self.sync.sync(None, None, shown, js=assets.call("live/knobs.js", "controlValues"), api_name="_sync", **QUIET)

    def _setter(self, knob: str) -> Callable[[Any], None]:
        def change(value: Any) -> None:
            # An empty number box sends None: the knob stays as it is until there is a number.
            if value is not None:
                self._playground.set_knobs({knob: value if isinstance(value, bool) else int(value)})

        return change

    def _slow_switched(self, on: bool, text: str) -> None:
        self._playground.set_knobs({"slow_motion": (_factor(text) or SLOW_FACTOR) if on else 1.0})

    def _slow_typed(self, text: str) -> str:
        """Change the factor if slow motion is on; the engine knows, the switch's event may be on its way."""
        factor, now = _factor(text), self._playground.knobs()["slow_motion"]
        if factor is None:
            gr.Warning("Slow motion takes a number above 1, at most 1000.")
            factor = now if now > 1 else SLOW_FACTOR
        elif now > 1 and now != factor:
            self._playground.set_knobs({"slow_motion": factor})
        return f"×{factor:g}"


def _factor(text: str) -> float | None:
    """Returns ``×4`` or ``4`` as a number; ``None`` if slow motion cannot have it."""
    try:
        factor = float(str(text).strip().lstrip("×xX"))
    except ValueError:
        return None
    return factor if 1 < factor <= 1000 else None
