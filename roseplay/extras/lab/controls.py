"""The page's Lab tab: a scenario under two settings, A and B, with both results in the same charts; a sweep of one
setting; or a search for the value that keeps two limits.

The controls are Gradio's; the tab's scripts (``static``) send their input to the lab's routes, so that a run of several
minutes does not occupy an event of the page.
"""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from roseplay.extras.lab.terms import TERMS
from roseplay.play.markup import html, panel
from roseplay.play.web import assets
from roseplay.play.web.calls import EVENT

# Parameters of scenarios; the tab hides those that the chosen scenario does not have.
PARAMS = (("num_requests", "Requests"), ("rate_per_s", "Requests/s"), ("max_new_tokens", "Answer"))

_ASKS = "rp-needs-server"  # of buttons that are locked while the server does not answer

_MODES = (
    '<div role="radiogroup" aria-label="What the Lab does"><button type="button" role="radio" data-mode="compare">Compare'
    '</button><button type="button" role="radio" data-mode="sweep">Sweep</button><button type="button" role="radio" '
    'data-mode="find">Find</button></div>'
)
_PROGRESS = (
    '<div class="rp-lab-top"><h3>Lab</h3><input type="text" class="rp-lab-name" maxlength="80" hidden '
    'aria-label="Name of this result" placeholder="name this result"><span class="rp-sub"></span>'
    '<span class="rp-lab-left" role="status"></span></div><p class="rp-lab-error" role="alert" hidden></p>'
    '<div class="rp-lab-bars" role="group" aria-label="Runs"></div>'
)
_RESULTS = (
    '<dialog id="rp-lab-results" class="rp-dialog" aria-labelledby="rp-lab-results-title"><h2 id="rp-lab-results-title">Results kept in '
    'this browser</h2><ul></ul><p class="rp-lab-said" role="status"></p><footer><button type="button" class="open">Open '
    'a file…</button><button type="button" class="close">Close</button></footer><input type="file" '
    'accept=".json,application/json" hidden aria-label="A result\'s file"></dialog>'
)


def number(label: str, name: str, value: float | None = None, **settings: Any) -> gr.Number:
    """Returns a small number box with its label above it."""
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


def _view(name: str, template: str, module: str, *events: str) -> gr.HTML:
    return html(template, elem_id=f"rp-{name}", head=assets.preload("lab.js"), js_on_load=assets.mount(module, *events))


class LabTab:
    """Builds the tab where it is created; ``wire`` connects its controls to its scripts."""

    def __init__(self) -> None:
        with gr.Column(elem_id="rp-lab-rail", min_width=0):
            self._rail()
        with gr.Column(elem_id="rp-lab-mid", min_width=0):
            _view("lab-progress", _PROGRESS, "lab/progress.js")
            panel("lab-pair", "Before and after", "", "lab/pair.js")
            panel("lab-itl", "Inter-token latency", "", "lab/itl.js", about="Inter-token latency, tail")
            panel("lab-ttft", "Time to first token", "", "lab/ttft.js", about="Time to first token, A and B")
            panel("lab-goodput", "Goodput", "", "lab/goodput.js")
            panel("lab-steps", "Tokens per step", "", "lab/steps.js", about="Tokens per step, A over B")
            _view("lab-answer", "", "lab/points/answer.js")
            panel("lab-curve-ttft", "Time to first token", "", "lab/points/ttft.js", about="Time to first token, p95")
            panel("lab-curve-itl", "Inter-token latency", "", "lab/points/itl.js", about="Inter-token latency, p99")
            panel("lab-kept", "Goodput", "", "lab/points/kept.js", about="Goodput, by value")
            panel("lab-left", "Where the answer can still be", "", "lab/points/left.js")
        with gr.Column(elem_id="rp-lab-right", min_width=0):
            panel("lab-settings", "Settings", "", "lab/settings.js")
            with gr.Column(elem_id="rp-lab-outcome", min_width=0):
                panel("lab-result", "Result", "", "lab/result.js")
                panel("lab-points", "Measured", "", "lab/points/table.js")
                with gr.Row(elem_id="rp-lab-limits"):
                    self.ttft = number("TTFT ≤", "lab-ttft-limit", minimum=0)
                    self.itl = number("ITL ≤", "lab-itl-limit", minimum=0)
            panel("lab-base", "Settings", "", "lab/points/base.js", about="Settings, as the engine runs now")
            panel("lab-look", "What to look for", "", "lab/sentences.js")
            panel("lab-before", "So far", "", "lab/points/before.js")
            with gr.Row(elem_id="rp-lab-foot"):
                self.report = gr.Button(
                    "Report", variant="primary", min_width=0, elem_id="lab-report", elem_classes=_ASKS
                )
                self.export = gr.Button("Export JSON", min_width=0, elem_id="lab-export")
                self.link = gr.Button("Copy link", min_width=0, elem_id="lab-link", elem_classes=_ASKS)

    def _rail(self) -> None:
        _view("lab-mode", _MODES, "lab/mode.js")
        title = f'<h3 title="{escape(TERMS["Scenario"])}">Scenario<span></span></h3>'
        # Its event `numbers` puts the scenario's numbers into the boxes.
        group = '<div role="radiogroup" aria-label="Scenario"></div>'
        self.cards = _view("lab-cards", f"{title}{group}", "lab/cards.js", "numbers")
        with gr.Column(elem_id="rp-lab-run", min_width=0):
            _view("lab-asked", "", "lab/points/asked.js")
            with gr.Row(elem_id="rp-lab-params"):
                self.seed = number("Seed", "lab-seed", 0, precision=0, minimum=0)
                self.repeats = number("Repeats", "lab-repeats", 3, precision=0, minimum=1)
                self.params = [number(label, f"lab-{name}", minimum=0) for name, label in PARAMS]
            _view("lab-longer", "", "lab/longer.js")
            self.run = gr.Button(
                "Run A and B",
                variant="primary",
                min_width=0,
                elem_id="lab-run",
                elem_classes=["rp-key", "rp-large", _ASKS],
            )
            with gr.Row(elem_id="rp-lab-more"):
                self.results = gr.Button("Results…", min_width=0, elem_id="lab-results")
                self.stop = gr.Button("Stop", min_width=0, elem_id="lab-stop", elem_classes=["rp-key", _ASKS])
            _view("lab-note", f"<p></p>{_RESULTS}", "lab/files.js")

    def wire(self) -> None:
        numbers: list[Any] = [self.seed, self.repeats, *self.params]
        limits: list[Any] = [self.ttft, self.itl]
        self.cards.numbers(None, None, numbers + limits, js=assets.call("lab/plan.js", "boxValues"), **EVENT)
        gr.on([box.input for box in numbers], None, numbers, None, js=assets.call("lab/plan.js", "typed"), **EVENT)
        gr.on(
            [box.input for box in limits], None, limits, None, js=assets.call("lab/document.js", "setLimits"), **EVENT
        )
        for button, module, function in (
            (self.run, "job", "run"), (self.stop, "job", "stop"), (self.results, "files", "openResults"),
            (self.report, "files", "openReport"), (self.export, "files", "exportDocument"), (self.link, "files", "copyLink"),
        ):  # fmt: skip
            button.click(None, None, None, js=assets.call(f"lab/{module}.js", function), **EVENT)
