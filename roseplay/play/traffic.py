"""The rail's section Traffic and the prompt bar: what the user sends, and how it is stopped.

A tab's id travels with each of its events: the browser puts it in place of a hidden field's value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any

import gradio as gr

from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.play.bursts import LABELS, MAX_SIZE
from roseplay.play.controls import slider
from roseplay.play.markup import section
from roseplay.play.playground import Playground
from roseplay.play.session import check_lane, check_tab_id
from roseplay.play.settings import whole_number
from roseplay.play.web.gradio_gate import failed_with
from roseplay.play.web.lines import one_line
from roseplay.recording.schema import MAX_LANES

DEFAULT_LANES = 4
DEFAULT_BURST = 20
DEFAULT_ANSWER = 64
ALL_LANES = "all lanes"

# In Gradio's queue: only there an error becomes a message on the page instead of a failed request.
EVENT: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
REFUSALS = (ValueError, EngineBusyError, EngineError)


def refused(error: Exception, status: int | None = None) -> gr.Error:
    """The error as a message to the user, and for a plain POST as a status."""
    if status is None:
        status = 429 if isinstance(error, EngineBusyError) else 503 if isinstance(error, EngineError) else 422
    failed_with(status)
    return gr.Error(one_line(error), print_exception=False, title="Not possible")


def _shown(error: Exception) -> gr.Error:
    """The error as a message on the page, where Gradio takes it for HTML."""
    failure = refused(error)
    failure.message = escape(str(error), quote=False)
    return failure


class Traffic:
    """The section Traffic: bursts, and Stop all."""

    def __init__(self, playground: Playground) -> None:
        self._playground = playground
        longest = max(16, min(256, playground.engine.info.max_model_len // 2 // 16 * 16))
        with gr.Column(elem_classes="rp-sec", min_width=0, elem_id="rp-traffic"):
            section("Traffic", "", "traffic")
            self.size = slider("Burst size", "load", 1, MAX_SIZE, DEFAULT_BURST, "burst-size")
            self.length = slider(
                "Answer length", "duration", 16, longest, min(DEFAULT_ANSWER, longest), "answer-length", step=16
            )
            self.kind = gr.Radio(
                list(LABELS.values()), value=LABELS["shared_head"], label="Prompts", show_label=False, container=False,
                min_width=0, elem_id="mix", elem_classes="rp-seg", interactive=True,
            )  # fmt: skip
            self.burst = gr.Button("Burst", variant="primary", min_width=0, elem_id="burst", elem_classes="rp-key")
            self.stop = gr.Button("Stop all", min_width=0, elem_id="stop", elem_classes="rp-key")
            self.tab = gr.Textbox(visible=False)

    def wire(self) -> None:
        inputs = [self.size, self.length, self.kind, self.tab]
        js = "(size, length, kind) => [size, length, kind, Rose.tab]"
        self.burst.click(self._burst, inputs, None, js=js, api_name="_burst", trigger_mode="multiple", **EVENT)
        self.stop.click(
            self._stop, self.tab, None, js="() => Rose.tab", api_name="_stop", trigger_mode="multiple", **EVENT
        )

    async def _burst(self, size: Any, length: Any, kind: Any, tab: Any) -> None:
        try:
            wanted = whole_number(size, "the burst size")
            how = {
                "max_new_tokens": whole_number(length, "the answer length"),
                "kind": kind,
                "seed": None,
                "tab_id": tab,
            }
            burst = await self._playground.submissions.run(partial(self._playground.burst, size=wanted, **how))
        except REFUSALS as error:
            raise _shown(error) from None
        if burst.size < wanted:
            gr.Warning(f"The engine took {burst.size} of {wanted} requests: too many wait already.")

    def _stop(self, tab: Any) -> None:
        try:
            check_tab_id(tab)
            self._playground.stop(tab_id=tab)
        except REFUSALS as error:
            raise _shown(error) from None


class PromptBar:
    """Under the lanes: how many there are, which of them are asked, the prompt, Send."""

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
                placeholder="Ask all lanes…", label="Prompt", show_label=False, container=False, lines=1, max_lines=1,
                min_width=0, elem_id="prompt", interactive=True,
            )  # fmt: skip
            self.sampling = gr.Button("Sampling", min_width=0, elem_id="sampling")
            self.send = gr.Button("Send", variant="primary", min_width=0, elem_id="send")
            self.tab = gr.Textbox(visible=False)

    def wire(self, lanes: gr.HTML) -> None:
        gr.on(
            [self.prompt.submit, self.send.click], self._send, [self.prompt, self.to, self.count, self.tab], self.prompt,
            js="async (prompt, to, count) => (await Rose.sampling.sent(), [prompt, to, count, Rose.tab])", api_name="_send", trigger_mode="multiple", **EVENT,
        )  # fmt: skip
        self.count.input(None, [self.count, self.to], self.to, js="(n, to) => Rose.showLanes(n, to)", **EVENT)
        self.to.input(None, self.to, None, js="(to) => Rose.sendTo(to)", **EVENT)
        self.sampling.click(None, None, None, js="() => Rose.sampling.toggle()", **EVENT)
        for name in ("ask", "edit", "again", "anew", "halt"):
            act = getattr(self, f"_{name}")
            getattr(lanes, name)(act, None, None, api_name=f"_{name}", trigger_mode="multiple", **EVENT)
        # A reload brings the page back as it was built; the tab remembers how many lanes it showed.
        lanes.restore(None, None, self.count, js="() => Rose.lanesShown()", **EVENT)

    async def _send(self, prompt: Any, to: Any, count: Any, tab: Any) -> str:
        try:
            number = count if to == ALL_LANES else str(to).removeprefix("lane ")
            lane = whole_number(number, "the lane")
            check_lane(lane)
        except ValueError as error:
            raise _shown(error) from None
        await self._to_lanes(prompt, list(range(1, lane + 1)) if to == ALL_LANES else [lane], tab)
        return ""

    async def _to_lanes(self, prompt: Any, lanes: list[int], tab: Any, *, edit: bool = False) -> None:
        send = partial(self._playground.send, prompt, lanes=lanes, tab_id=tab, edit=edit)
        try:
            await self._playground.submissions.run(send)
        except REFUSALS as error:
            raise _shown(error) from None

    # What the lanes' own buttons do

    async def _ask(self, event: gr.EventData) -> None:
        lane, tab, prompt = _asked(event)
        await self._to_lanes(prompt, [lane], tab)

    async def _edit(self, event: gr.EventData) -> None:
        lane, tab, prompt = _asked(event)
        await self._to_lanes(prompt, [lane], tab, edit=True)

    async def _again(self, event: gr.EventData) -> None:
        lane, tab, _ = _asked(event)
        await self._in_lane(self._playground.chats.regenerate, lane, tab)

    async def _anew(self, event: gr.EventData) -> None:
        lane, tab, _ = _asked(event)
        await self._in_lane(self._playground.chats.new_chat, lane, tab)  # it waits for a submit to the same lane

    async def _in_lane(self, act: Callable[..., Any], lane: int, tab: str) -> None:
        try:
            await self._playground.submissions.run(partial(act, lanes=[lane], tab_id=tab))
        except REFUSALS as error:
            raise _shown(error) from None

    def _halt(self, event: gr.EventData) -> None:
        lane, tab, _ = _asked(event)
        try:
            self._playground.stop(tab_id=tab, lane=lane)
        except REFUSALS as error:
            raise _shown(error) from None


def _asked(event: gr.EventData) -> tuple[int, str, Any]:
    """Lane, tab and, where one is sent, prompt of an event of the lanes."""
    try:
        lane, tab = whole_number(getattr(event, "lane", None), "the lane"), getattr(event, "tab", None)
        check_lane(lane)
        check_tab_id(tab)
    except ValueError as error:
        raise _shown(error) from None
    return lane, str(tab), getattr(event, "prompt", None)
