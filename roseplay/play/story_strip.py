"""The strip under the header, and the demos that it starts, goes on with and ends."""

from __future__ import annotations

from typing import Any

import gradio as gr

from roseplay.play.demos.catalog import DEMOS
from roseplay.play.markup import html
from roseplay.play.playground import Playground
from roseplay.play.session import check_tab_id
from roseplay.play.web import assets
from roseplay.play.web.calls import EVENT, refusals_on_page

# What the page lists; how long each takes here it learns from its first poll.
LIST = [{"name": demo.name, "title": demo.title, "shows": demo.shows} for demo in DEMOS.values()]


class StoryStrip:
    """Builds the strip where it is made; ``wire`` connects its buttons."""

    def __init__(self, playground: Playground) -> None:
        self._playground = playground
        events = ("start_demo", "next_caption", "end_demo")
        load = assets.mount("live/story.js", *events)
        self.strip = html('<div class="rp-strip"></div>', elem_id="rp-story", js_on_load=load)

    def wire(self) -> None:
        settings: dict[str, Any] = {"trigger_mode": "multiple", **EVENT}
        self.strip.start_demo(self._start, None, None, api_name="_start_demo", **settings)
        self.strip.next_caption(self._next, None, None, api_name="_next_caption", **settings)
        self.strip.end_demo(self._end, None, None, api_name="_end_demo", **settings)

    def _start(self, event: gr.EventData) -> None:
        with refusals_on_page():
            self._playground.start_demo(str(getattr(event, "name", "")), _tab(event))

    def _next(self, event: gr.EventData) -> None:
        with refusals_on_page():
            self._playground.demos.next(_tab(event))

    def _end(self, event: gr.EventData) -> None:
        with refusals_on_page():
            self._playground.demos.stop(_tab(event))


def _tab(event: gr.EventData) -> str:
    return check_tab_id(getattr(event, "tab", None))
