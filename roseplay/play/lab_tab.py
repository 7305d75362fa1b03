"""The page's tab Lab: one scenario run under two settings, A and B, and both results over each other.

The controls are Gradio's own; what they do is said to the lab's routes by the tab's scripts (``static/lab*.js``), so
that a run that takes minutes holds no event of the page.
"""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from roseplay.play.markup import html, panel
from roseplay.play.terms import TERMS
from roseplay.play.web import assets

# The parameters that a scenario may offer; the tab hides those that the chosen one does not.
PARAMS = (("num_requests", "Requests"), ("rate_per_s", "Rate, 1/s"), ("max_new_tokens", "Answer"))
NOTE = "Same prompts, same arrival times, greedy. Slow motion is refused here."

_PROGRESS = (
    '<div class="rp-lab-top"><h3>Lab</h3><input type="text" class="rp-lab-name" maxlength="80" hidden '
    'aria-label="Name of this result" placeholder="name this result"><span class="rp-sub"></span>'
    '<span class="rp-lab-left" role="status"></span></div><p class="rp-lab-error" role="alert" hidden></p>'
    '<div class="rp-lab-bars" role="group" aria-label="Runs"></div>'
)
_RESULTS = (
    '<dialog id="rp-lab-results" aria-labelledby="rp-lab-results-title"><h2 id="rp-lab-results-title">Results kept in '
    'this browser</h2><ul></ul><p class="rp-lab-said" role="status"></p><footer><button type="button" class="open">Open '
    'a file…</button><button type="button" class="close">Close</button></footer><input type="file" '
    'accept=".json,application/json" hidden aria-label="A result\'s file"></dialog>'
)


def number(label: str, name: str, value: float | None = None, **settings: Any) -> gr.Number:
    """A small number box with its label over it."""
    return gr.Number(
        value,
        label=label,
        min_width=0,
        interactive=True,
        elem_id=name,
        elem_classes="rp-lab-num",
        buttons=[],
        **settings,
    )


class LabTab:
    """Builds the tab where it is made; ``wire`` connects its controls to its scripts."""

    def __init__(self) -> None:
        self._scripts = assets.script_tags(charts=True, lab=True)
        with gr.Column(elem_id="rp-lab-rail", min_width=0):
            self._rail()
        with gr.Column(elem_id="rp-lab-mid", min_width=0):
            self._view("lab-progress", _PROGRESS, "Rose.lab.progress(element)")
            panel("lab-itl", "Inter-token latency, tail", "", self._scripts, view="lab.itl")
            panel("lab-ttft", "Time to first token, A and B", "", self._scripts, view="lab.ttft")
            panel("lab-steps", "Tokens per step, A over B", "", self._scripts, view="lab.steps")
        with gr.Column(elem_id="rp-lab-right", min_width=0):
            panel("lab-settings", "Settings", "", self._scripts, view="lab.settings")
            with gr.Column(elem_id="rp-lab-outcome", min_width=0):
                panel("lab-result", "Result", "", self._scripts, view="lab.result")
                with gr.Row(elem_id="rp-lab-limits"):
                    self.ttft = number("TTFT ≤", "lab-ttft-limit", minimum=0)
                    self.itl = number("own p99 ITL ≤", "lab-itl-limit", minimum=0)
            panel("lab-goodput", "Goodput", "", self._scripts, view="lab.goodput")
            panel("lab-look", "What to look for", "", self._scripts, view="lab.sentences")
            with gr.Row(elem_id="rp-lab-foot"):
                self.report = gr.Button("Report", variant="primary", min_width=0, elem_id="lab-report")
                self.export = gr.Button("Export JSON", min_width=0, elem_id="lab-export")
                self.link = gr.Button("Copy link", min_width=0, elem_id="lab-link")

    def _rail(self) -> None:
        title = f'<h3 title="{escape(TERMS["Scenario"])}">Scenario<span></span></h3>'
        # Its event `numbers` has Gradio put the scenario's numbers into the boxes.
        self.cards = self._view(
            "lab-cards", f'{title}<div role="radiogroup" aria-label="Scenario"></div>', "Rose.lab.cards(element, () => trigger('numbers'))"
        )  # fmt: skip
        with gr.Column(elem_id="rp-lab-run", min_width=0):
            with gr.Row(elem_id="rp-lab-params"):
                self.seed = number("Seed", "lab-seed", 0, precision=0, minimum=0)
                self.repeats = number("Repeats", "lab-repeats", 3, precision=0, minimum=1)
                self.params = [number(label, f"lab-{name}", minimum=0) for name, label in PARAMS]
            self.run = gr.Button(
                "Run A and B", variant="primary", min_width=0, elem_id="lab-run", elem_classes="rp-key"
            )
            with gr.Row(elem_id="rp-lab-more"):
                self.results = gr.Button("Results…", min_width=0, elem_id="lab-results")
                self.stop = gr.Button("Stop", min_width=0, elem_id="lab-stop", elem_classes="rp-key")
            html(
                f"<p>{NOTE}</p>{_RESULTS}",
                elem_id="rp-lab-note",
                head=self._scripts,
                js_on_load="Rose.lab.kept(element)",
            )

    def _view(self, name: str, template: str, js: str) -> gr.HTML:
        return html(template, elem_id=f"rp-{name}", head=self._scripts, js_on_load=js)

    def wire(self) -> None:
        numbers: list[Any] = [self.seed, self.repeats, *self.params]
        limits: list[Any] = [self.ttft, self.itl]
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        self.cards.numbers(None, None, numbers + limits, js="() => Rose.lab.boxes()", **quiet)
        gr.on([box.input for box in numbers], None, numbers, None, js="(...boxes) => Rose.lab.typed(...boxes)", **quiet)
        gr.on([box.input for box in limits], None, limits, None, js="(...boxes) => Rose.lab.promise(...boxes)", **quiet)
        for button, does in (
            (self.run, "run"), (self.stop, "stop"), (self.results, "results"), (self.report, "report"),
            (self.export, "export"), (self.link, "link"),
        ):  # fmt: skip
            button.click(None, None, None, js=f"() => Rose.lab.{does}()", **quiet)
