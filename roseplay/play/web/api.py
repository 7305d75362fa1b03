"""The named endpoints, through which ``gradio_client`` can do whatever the page's buttons do.

client = gradio_client.Client("http://127.0.0.1:7860")
client.predict("What is a KV block?", api_name="/chat")
client.predict({"prefill_max_tokens": 64}, api_name="/set_knobs")
client.predict(32, "equal", api_name="/burst")
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gradio as gr
from gradio.context import LocalContext

from roseplay.config import Knobs, SamplingParams
from roseplay.engine.errors import EngineError
from roseplay.engine.stream import Stream
from roseplay.formats.json_text import json_object
from roseplay.play import inputs
from roseplay.play.answer_settings import NAMES, read
from roseplay.play.bursts import DEFAULT_ANSWER, DEFAULT_BURST, DEFAULT_KIND, DEFAULT_RATE, LABELS
from roseplay.play.chats import Message
from roseplay.play.demos.catalog import DEMOS
from roseplay.play.page_host import PageHost
from roseplay.play.session import DEFAULT_LANES, check_tab_id
from roseplay.play.web.calls import refusal, refusals_as_errors
from roseplay.play.web.endpoints import Endpoint, Endpoints, add_events, endpoint
from roseplay.recording.request_registry import TrackedRequest
from roseplay.recording.schema import MAX_LANES
from roseplay.settings import Setting, defaults_of, settings_of
from roseplay.traffic.arrivals import Spacing

DEFAULT_PROMPT = "What is a KV block?"
LOOK_S = 0.5  # how often /chat sends the text so far and checks whether the client is still connected
ALL: Any = 0  # lanes


def endpoints(host: PageHost) -> list[Endpoint]:
    """Returns the endpoints that the page calls too, which are all but ``/chat``."""
    prompts, chats, engine, demos = Prompts(host), Chats(host), Steering(host), Demos(host)
    return [
        prompts.submit,
        chats.new_chat,
        chats.regenerate,
        engine.burst,
        engine.steady,
        engine.set_knobs,
        engine.stop,
        demos.start_demo,
        demos.next_caption,
        demos.end_demo,
    ]


def add_endpoints(host: PageHost) -> None:
    add_events({endpoint: _about(endpoint) for endpoint in endpoints(host)})
    chat = Prompts(host).chat
    gr.api(chat, api_description=_about(chat), concurrency_limit=None)


def _about(endpoint: Callable[..., Any]) -> str:
    """Returns the description of an endpoint and of the settings among its arguments."""
    settings: dict[str, str] = {"set_knobs": _in_words(settings_of(Knobs), defaults_of(Knobs))}
    defaults = {name: value for name, value in defaults_of(SamplingParams).items() if name in NAMES}
    settings["submit"] = settings["chat"] = _in_words(settings_of(SamplingParams), defaults)
    return f"{inspect.getdoc(endpoint)}\n\n{settings.get(endpoint.__name__, '')}".rstrip()


def _in_words(settings: Mapping[str, Setting], defaults: Mapping[str, Any]) -> str:
    """Returns a line for each setting that has a default: its values, its default, and what it does."""
    return "\n".join(
        f"{name}: {setting.takes}{f', in {setting.unit}' if setting.unit else ''}; {setting.show(defaults[name])} by default."
        f" {setting.explanation}"
        for name, setting in settings.items()
        if name in defaults
    )


class Prompts(Endpoints):
    """Prompts."""

    @endpoint
    @inputs.with_settings
    async def submit(
        self,
        prompt: str = DEFAULT_PROMPT,
        lane: inputs.LaneNumbers = ALL,
        max_new_tokens: inputs.Whole | None = None,
        temperature: inputs.Number | None = None,
        seed: inputs.Whole | None = None,
        tab: inputs.TabIdOrNone = "",
        ignore_eos: inputs.Switch = False,
        system: str | None = None,
        edit: inputs.Switch = False,
        **settings: Any,
    ) -> dict:
        """Submit a prompt and return the ids of its requests at once.

        With a tab's id (``Rose.tab`` in its console) it continues the chat in that tab's lane, from 1, or in several; lane 0
        is the first four. Null settings are the lane's; with ``edit`` the prompt replaces the last question. Without a tab
        it is a request of its own that only the live views show, greedy by default. ``ignore_eos``: answer exactly
        ``max_new_tokens`` tokens.
        """
        changes = _given(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, system=system, **settings)
        if not tab:
            params = dataclasses.replace(_params(changes), ignore_eos=ignore_eos)
            return {"ids": [(await self._ask(prompt, params, system=system)).request_id]}
        chats, lanes = self.playground.chats, _numbers(lane)
        given = [chats.settings(tab, number).changed(changes) for number in lanes]
        await self.submissions.check_grammars(self.playground.engine, *given)
        send = partial(chats.send, prompt, lanes=lanes, tab_id=tab, changes=changes, ignore_eos=ignore_eos, edit=edit)
        return {"ids": await self.submissions.run(send)}

    @inputs.with_settings
    async def chat(
        self,
        prompt: str = DEFAULT_PROMPT,
        max_new_tokens: int | None = SamplingParams.max_new_tokens,
        temperature: float | None = SamplingParams.temperature,
        seed: int | None = None,
        messages: list[dict] | None = None,
        system: str | None = None,
        request: gr.Request = None,  # type: ignore[assignment]
        *values: Any,
        **settings: Any,
    ) -> AsyncIterator[str]:
        """Submit a prompt, or a whole conversation as ``messages`` of role and content; returns the answer's text.

        A job that is iterated over yields the text so far twice a second. A client that disconnects aborts its request.
        """
        with refusals_as_errors():
            named = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
            others = [name for name in NAMES if name not in ("system", *named)]  # Gradio gives them by position
            params = _params(_given(**named, **dict(zip(others, values, strict=False)), **settings))
            stream = (await self._ask(prompt, params, system=system, messages=messages)).stream
        try:
            async for text in _texts(stream, request):
                yield text
        finally:
            stream.cancel()  # does nothing once it has ended; otherwise the client is gone
        if stream.error is not None:
            raise refusal(EngineError(stream.error))
        yield stream.text

    async def _ask(
        self, prompt: Any, params: SamplingParams, *, system: Any, messages: Sequence[Message] | None = None
    ) -> TrackedRequest:
        await self.submissions.check_grammars(self.playground.engine, params)
        send = partial(self.playground.chats.ask, prompt, params, system=system, messages=messages)
        return await self.submissions.ask(send, lambda tracked: tracked.stream.cancel())


class Chats(Endpoints):
    """The chats of a tab."""

    @endpoint
    async def new_chat(self, lane: inputs.LaneNumbers = ALL, tab: inputs.TabIdOrNone = "") -> int:
        """Stop and clear the chat in a tab's lane, 0 for all of its lanes; returns how many had one."""
        clear = partial(self.playground.chats.new_chat, lanes=_numbers(lane, MAX_LANES), tab_id=tab)
        return await self.submissions.run(clear)  # may wait for a submit to the same lane

    @endpoint
    async def regenerate(self, lane: inputs.LaneNumbers = ALL, tab: inputs.TabIdOrNone = "") -> dict:
        """Ask the last question of a tab's lane again with another seed, 0 for all of its lanes; returns the ids."""
        lanes = _numbers(lane, MAX_LANES)
        settings = [self.playground.chats.settings(tab, number) for number in lanes]
        await self.submissions.check_grammars(self.playground.engine, *settings)
        again = partial(self.playground.chats.regenerate, lanes=lanes, tab_id=tab)
        return {"ids": await self.submissions.run(again)}


class Steering(Endpoints):
    """Traffic and knobs."""

    @endpoint
    async def burst(
        self,
        size: inputs.Whole = DEFAULT_BURST,
        kind: str = LABELS[DEFAULT_KIND],
        max_new_tokens: inputs.Whole = DEFAULT_ANSWER,
        seed: inputs.Whole | None = None,
        tab: inputs.TabIdOrNone = "",
        tenant: str | None = None,
        priority: inputs.Whole = 0,
    ) -> dict:
        """Submit many requests at once: unique, equal, same start, or mix (every fourth 64 times as long).

        The same seed submits the same prompts again; without one they differ each time. ``tenant`` and ``priority`` are
        for the scheduling policies.
        """
        send = partial(self.playground.traffic.burst, size=size, kind=kind, max_new_tokens=max_new_tokens, seed=seed)
        burst = await self.submissions.run(partial(send, tab_id=tab, tenant=tenant or None, priority=priority))
        return {"burst": burst.burst_id, "seed": burst.seed, "ids": [tracked.request_id for tracked in burst.requests]}

    @endpoint
    async def steady(
        self,
        rate: inputs.Number = DEFAULT_RATE,
        kind: str = LABELS[DEFAULT_KIND],
        max_new_tokens: inputs.Whole = DEFAULT_ANSWER,
        spacing: Spacing = "poisson",
        seed: inputs.Whole | None = None,
        tab: inputs.TabIdOrNone = "",
        tenant: str | None = None,
        priority: inputs.Whole = 0,
    ) -> dict | None:
        """Send requests at a rate a second until that is stopped, whether or not earlier ones are answered.

        It ends with the tab, when too many of its requests wait, after an hour, with ``/stop``, or with a rate of 0,
        which leaves what was sent to be answered. ``spacing`` is poisson or even. Without a seed, traffic that runs goes
        on with its own under the new plan. Returns the traffic's figures, which the tab's polls have too; null where
        there was none to stop.
        """
        if rate == 0 and tab:
            return next((steady.figures() for steady in self.playground.traffic.stop("steady", tab)), None)
        start = partial(self.playground.traffic.start_steady, rate=rate, spacing=spacing, kind=kind, seed=seed)
        start = partial(start, max_new_tokens=max_new_tokens, tab_id=tab, tenant=tenant or None, priority=priority)
        return (await self.submissions.run(start)).figures()

    @endpoint
    def set_knobs(self, knobs: Any = None) -> dict:
        """Change any knobs, as a JSON object; returns all of them. Text is read as what is typed into a knob's box."""
        changes = {} if knobs is None else json_object(knobs, "the knobs", '{"prefill_max_tokens": 256}')
        return self.playground.set_knobs({name: _typed(name, value) for name, value in changes.items()})

    @endpoint
    def stop(
        self, ids: inputs.RequestIds | None = None, tab: inputs.TabIdOrNone = "", lane: inputs.LaneNumber = 0
    ) -> int:
        """Stop requests: those with these ids, those of a tab or of one of its lanes, or else all; returns how many."""
        return self.playground.stop(tab_id=check_tab_id(tab) if lane else tab, lane=lane or None, ids=ids)


class Demos(Endpoints):
    """The guided demos of a tab."""

    @endpoint
    def start_demo(self, name: str = next(iter(DEMOS)), tab: inputs.TabId = "") -> str:
        """Play a demo in a tab, or ``check``: the newest two bursts once more. Returns its title. Whatever is sent from that
        tab, and any change of a knob, ends it."""
        return self.playground.start_demo(name, tab).title

    @endpoint
    def next_caption(self, tab: inputs.TabId = "", guess: inputs.AnswerNumber = 0) -> bool:
        """Go on to the next caption of a tab's demo, with an answer to its question; returns whether there is one."""
        return self.playground.demos.next(tab, guess)

    @endpoint
    def end_demo(self, tab: inputs.TabId = "") -> bool:
        """End a tab's demo; returns whether there was one."""
        return self.playground.demos.stop(tab)


def _typed(knob: str, value: Any) -> Any:
    """Returns a knob's value; of text, as it is typed, what it stands for: ``×4``, ``1 024``, ``unlimited``."""
    setting = settings_of(Knobs).get(knob)
    if setting is None or not isinstance(value, str):
        return value
    return setting.given(knob, value.strip().lower().lstrip("×").replace("\u202f", "").replace(" ", ""))


def _numbers(lanes: list[int], all_of_them: int = DEFAULT_LANES) -> list[int]:
    """Returns the numbers of lanes, those of the first ``all_of_them`` for 0."""
    return list(range(1, all_of_them + 1)) if lanes == [0] else lanes


def _given(**settings: Any) -> dict[str, Any]:
    return read({name: value for name, value in settings.items() if value is not None})


def _params(given: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**{name: value for name, value in given.items() if name != "system"})


async def _texts(stream: Stream, request: gr.Request | None) -> AsyncIterator[str]:
    """Wait until the stream ends or the client is gone; yields the text so far to calls through Gradio's queue."""
    queued = LocalContext.event_id.get(None) is not None
    while not await _ends(stream, LOOK_S):
        if queued:
            yield stream.text  # if the client has gone, Gradio closes the generator here
        elif request is not None and await request.request.is_disconnected():
            return  # a plain POST to /run/ takes only the first value, so nothing is yielded to it before the result


async def _ends(stream: Stream, seconds: float) -> bool:
    """Returns whether the stream ends within this time."""
    try:
        async with asyncio.timeout(seconds):
            async for _ in stream:
                pass
    except TimeoutError:
        return False
    return True
