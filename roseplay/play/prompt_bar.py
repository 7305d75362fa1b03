"""The prompt bar under the lanes: how many lanes there are, which of them are asked, the prompt, Send.

The id of the tab travels with each event: the browser puts it in place of a hidden field's value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr

from roseplay.play.playground import Playground
from roseplay.play.session import check_lane, check_tab_id
from roseplay.play.settings import whole_number
from roseplay.play.web import assets
from roseplay.play.web.calls import EVENT, refusals_on_page
from roseplay.recording.schema import MAX_LANES

DEFAULT_LANES = 4
ALL_LANES = "all lanes"


class PromptBar:
    """Builds the bar where it is made; ``wire`` connects it and the lanes' own buttons."""

    def __init__(self, playground: Playground) -> None:
        self._playground = playground
        numbers = [str(n) for n in range(1, MAX_LANES + 1)]
        with gr.Row(elem_id="rp-say"):
            settings: dict[str, Any] = {"show_label": False, "container": False, "filterable": False, "min_width": 0}
            self.count = gr.Dropdown(
                [(f"{n} lane{'s' * (n != '1')}", n) for n in numbers], value=str(DEFAULT_LANES), label="Lanes shown",
                elem_id="lane-count", elem_classes="rp-drop", interactive=True, **settings,
            )  # fmt: skip
            self.to = gr.Dropdown(
                [ALL_LANES, *(f"lane {n}" for n in numbers)], value=ALL_LANES, label="Send to", elem_id="to",
                elem_classes="rp-drop", interactive=True, **settings,
            )  # fmt: skip
            self.prompt = gr.Textbox(
                placeholder="Ask all four lanes…", label="Prompt", show_label=False, container=False, lines=1, max_lines=1,
                min_width=0, elem_id="prompt", interactive=True,
            )  # fmt: skip
            self.sampling = gr.Button("Sampling", min_width=0, elem_id="sampling")
            self.send = gr.Button("Send", variant="primary", min_width=0, elem_id="send")
            self.tab = gr.Textbox(visible=False)

    def wire(self, lanes: gr.HTML) -> None:
        gr.on(
            [self.prompt.submit, self.send.click], self._send, [self.prompt, self.to, self.count, self.tab], self.prompt,
            js=assets.call("lanes/lanes.js", "promptInputs"), api_name="_send", trigger_mode="multiple", **EVENT,
        )  # fmt: skip
        self.count.input(None, [self.count, self.to], self.to, js=assets.call("lanes/lanes.js", "showLanes"), **EVENT)
        self.to.input(None, self.to, None, js=assets.call("lanes/lanes.js", "sendTo"), **EVENT)
        self.sampling.click(None, None, None, js=assets.call("lanes/sampling.js", "toggle"), **EVENT)
        for name in ("ask", "edit", "again", "new_chat", "halt"):
            act = getattr(self, f"_{name}")
            getattr(lanes, name)(act, None, None, api_name=f"_{name}", trigger_mode="multiple", **EVENT)
        # A reloaded page is as it was built; the tab remembers how many lanes it showed.
        lanes.restore(None, None, self.count, js=assets.call("lanes/lanes.js", "lanesShown"), **EVENT)

    async def _send(self, prompt: Any, to: Any, count: Any, tab: Any) -> str:
        with refusals_on_page():
            lane = whole_number(count if to == ALL_LANES else str(to).removeprefix("lane "), "the lane")
            check_lane(lane)
        await self._to_lanes(prompt, list(range(1, lane + 1)) if to == ALL_LANES else [lane], tab)
        return ""

    async def _to_lanes(self, prompt: Any, lanes: list[int], tab: Any, *, edit: bool = False) -> None:
        send = partial(self._playground.send, prompt, lanes=lanes, tab_id=tab, edit=edit)
        with refusals_on_page():
            await self._playground.submissions.run(send)

    # -- the lanes' own buttons

    async def _ask(self, event: gr.EventData) -> None:
        lane, tab, prompt = _asked(event)
        await self._to_lanes(prompt, [lane], tab)

    async def _edit(self, event: gr.EventData) -> None:
        lane, tab, prompt = _asked(event)
        await self._to_lanes(prompt, [lane], tab, edit=True)

    async def _again(self, event: gr.EventData) -> None:
        lane, tab, _ = _asked(event)
        await self._in_lane(self._playground.chats.regenerate, lane, tab)

    async def _new_chat(self, event: gr.EventData) -> None:
        lane, tab, _ = _asked(event)
        await self._in_lane(self._playground.chats.new_chat, lane, tab)  # may wait for a submit to the same lane

    async def _in_lane(self, act: Callable[..., Any], lane: int, tab: str) -> None:
        with refusals_on_page():
            await self._playground.submissions.run(partial(act, lanes=[lane], tab_id=tab))

    def _halt(self, event: gr.EventData) -> None:
        lane, tab, _ = _asked(event)
        with refusals_on_page():
            self._playground.stop(tab_id=tab, lane=lane)


def _asked(event: gr.EventData) -> tuple[int, str, Any]:
    """Returns lane, tab and, if there is one, prompt of an event of the lanes."""
    with refusals_on_page():
        lane, tab = whole_number(getattr(event, "lane", None), "the lane"), getattr(event, "tab", None)
        check_lane(lane)
        check_tab_id(tab)
    return lane, str(tab), getattr(event, "prompt", None)
