"""The prompt bar under the lanes: the number of lanes, the lanes to ask, the prompt, and Send."""

from __future__ import annotations

from typing import Any

import gradio as gr

from roseplay.play.session import DEFAULT_LANES
from roseplay.play.web import assets
from roseplay.play.web.calls import EVENT
from roseplay.recording.schema import MAX_LANES


class PromptBar:
    """Builds the bar where it is created; ``wire`` connects it to the script of the lanes."""

    def __init__(self) -> None:
        numbers = [str(n) for n in range(1, MAX_LANES + 1)]
        with gr.Row(elem_id="rp-say"):
            settings: dict[str, Any] = {"show_label": False, "container": False, "filterable": False, "min_width": 0}
            self.count = gr.Dropdown(
                [(f"{n} lane{'s' * (n != '1')}", n) for n in numbers], value=str(DEFAULT_LANES), label="Lanes shown",
                elem_id="lane-count", elem_classes="rp-drop", interactive=True, **settings,
            )  # fmt: skip
            self.to = gr.Dropdown(
                [("all lanes", "0"), *((f"lane {n}", n) for n in numbers)], value="0", label="Send to", elem_id="to",
                elem_classes="rp-drop", interactive=True, **settings,
            )  # fmt: skip
            self.prompt = gr.Textbox(
                placeholder="Ask all four lanes…", label="Prompt", show_label=False, container=False, lines=1, max_lines=1,
                min_width=0, elem_id="prompt", interactive=True,
            )  # fmt: skip
            self.sampling = gr.Button("Sampling", min_width=0, elem_id="sampling")
            self.send = gr.Button("Send", variant="primary", min_width=0, elem_id="send")

    def wire(self, lanes: gr.HTML) -> None:
        send, shows, to = (assets.call("lanes/lanes.js", name) for name in ("send", "showLanes", "sendTo"))
        gr.on(
            [self.prompt.submit, self.send.click], None, [self.prompt, self.to, self.count], self.prompt, js=send, **EVENT
        )  # fmt: skip
        self.count.input(None, [self.count, self.to], self.to, js=shows, **EVENT)
        self.to.input(None, self.to, None, js=to, **EVENT)
        self.sampling.click(None, None, None, js=assets.call("lanes/sampling.js", "toggle"), **EVENT)
        # A reloaded page has its initial state, but the tab remembers how many lanes it showed.
        lanes.restore(None, None, self.count, js=assets.call("lanes/lanes.js", "lanesShown"), **EVENT)
