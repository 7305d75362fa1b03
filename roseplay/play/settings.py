"""The sampling panel: how answers are drawn, in all lanes or in one. It opens from the prompt bar, over the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from roseplay.play.assets import script_tags
from roseplay.play.controls import slider
from roseplay.play.lanes import MAX_LANES
from roseplay.play.markup import html
from roseplay.play.playground import Playground
from roseplay.play.sampling import MAX_SYSTEM_CHARS, Settings, defaults, read

ALL = "all lanes"
_CROSS = (
    '<div class="rp-samp-head"><h3>Sampling</h3><button type="button" aria-label="Close" title="Close (Esc)">'
    '<svg width="10" height="10" aria-hidden="true"><path d="M1 1l8 8M9 1l-8 8" stroke="currentColor" stroke-width="1.4"/>'
    "</svg></button></div>"
)
# Private, but in Gradio's queue: only there a warning reaches the user.
_EVENT: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "trigger_mode": "always_last"}


class SamplingPanel:
    """Gradio's own controls over the settings that the tab keeps on the server."""

    def __init__(self, playground: Playground) -> None:
        self._talk = playground.talk
        longest = playground.engine.info.max_model_len
        now = defaults(longest)
        with gr.Column(elem_id="rp-sampling", min_width=0):
            scripts = script_tags(charts=False)
            html(_CROSS, elem_id="rp-sampling-head", head=scripts, js_on_load="Rose.sampling.panel(element)")
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
            self.tab = gr.Textbox(visible=False)

    def wire(self, lanes: gr.HTML) -> None:
        """``lanes`` tells with its event ``restore`` that the page was built anew."""
        for name, field in self.fields.items():
            asked: dict[str, Any] = {"inputs": [field, self.lane, self.tab], "outputs": [field, self.reset]}
            asked |= {
                "concurrency_id": "sampling",
                "concurrency_limit": 1,
            }  # one after another, so that the last one counts
            js = "(value, lane) => [value, lane, Rose.tab]"
            # A seed is read when it is whole. Text that is pasted is no input to Gradio, so leaving the field counts too.
            slides = isinstance(field, gr.Slider)
            events = [field.input] if slides else [field.blur, field.submit if name == "seed" else field.input]
            gr.on(events, self._setter(name), js=js, api_name=f"_sampling_{name}", **asked, **_EVENT)
        shown = [*self.fields.values(), self.reset]
        both: dict[str, Any] = {
            "inputs": [self.lane, self.tab],
            "js": "(lane) => [lane, Rose.tab]",
            "queue": False,
            **_EVENT,
        }
        self.lane.input(self._shown, outputs=shown, api_name="_sampling_lane", **both)
        self.reset.click(self._reset, outputs=shown, api_name="_sampling_reset", **both)
        lanes.restore(self._shown, outputs=shown, api_name="_sampling_restore", **both)

    def _setter(self, name: str) -> Callable[..., list[Any]]:
        def change(value: Any, lane: str, tab: str) -> list[Any]:
            number = _number(lane)
            if value is None:  # an emptied number box: there is none until there is one
                return [gr.skip(), gr.skip()]
            try:
                if read({name: value})[name] == getattr(self._talk.settings(tab, number), name):
                    return [gr.skip(), gr.skip()]  # a field that was only passed through
                self._talk.set_settings({name: value}, lane=number, tab_id=tab)
            except ValueError as error:
                gr.Warning(str(error), title="Not possible")
                return [_values(self._talk.settings(tab, number))[name], gr.skip()]
            return [gr.skip(), self._button(number, tab)]

        return change

    def _shown(self, lane: str, tab: str) -> list[Any]:
        number = _number(lane)
        return [*_values(self._talk.settings(tab, number)).values(), self._button(number, tab)]

    def _reset(self, lane: str, tab: str) -> list[Any]:
        self._talk.reset_settings(lane=_number(lane), tab_id=tab)
        return self._shown(lane, tab)

    def _button(self, lane: int, tab: str) -> Any:
        own = len(self._talk.own_settings(tab, lane))
        words = "As all lanes" if lane else "Defaults"
        return gr.Button(f"{words} ({own} changed)" if own else words, interactive=bool(own))


def _number(lane: str) -> int:
    return 0 if lane == ALL else int(lane.removeprefix("lane "))


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
