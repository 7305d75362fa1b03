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
from roseplay.formats.text import shown
from roseplay.play.answer_settings import NAMES, read, whole_number
from roseplay.play.bursts import DEFAULT_ANSWER, DEFAULT_BURST, DEFAULT_RATE
from roseplay.play.chats import Message
from roseplay.play.demos.catalog import DEMOS
from roseplay.play.page_host import PageHost
from roseplay.play.session import DEFAULT_LANES, check_tab_id
from roseplay.play.stops import read_knob
from roseplay.play.web.calls import Endpoints, refusal, refusals_as_errors, warn
from roseplay.recording.request_registry import TrackedRequest
from roseplay.recording.schema import MAX_LANES
from roseplay.settings import Setting, defaults_of, settings_of

DEFAULT_PROMPT = "What is a KV block?"
LOOK_S = 0.5  # how often /chat sends the text so far and checks whether the client is still connected
MAX_IDS = 10_000  # per call of /stop


def endpoints(host: PageHost) -> dict[Callable[..., Any], str]:
    """Returns the endpoints that are also events of the page's controls, which are all but ``/chat``, with descriptions."""
    requests, lanes, engine, demos = Requests(host), Lanes(host), Steering(host), Demos(host)
    of_page: list[Callable[..., Any]] = [requests.submit, lanes.new_chat, lanes.regenerate]
    of_page += [engine.burst, engine.steady, engine.set_knobs, engine.stop]
    of_page += [demos.start_demo, demos.next_caption, demos.end_demo]
    return {endpoint: _about(endpoint) for endpoint in of_page}


def add_chat(host: PageHost) -> None:
    """Add ``/chat`` to the page that is being built."""
    chat = Requests(host).chat
    gr.api(chat, api_name="chat", api_description=_about(chat), concurrency_limit=None)


def _about(endpoint: Callable[..., Any]) -> str:
    """Returns the description of an endpoint and of the settings among its arguments."""
    settings: dict[str, str] = {"set_knobs": _in_words(settings_of(Knobs), defaults_of(Knobs))}
    settings["submit"] = settings["chat"] = _in_words(
        settings_of(SamplingParams),
        {name: value for name, value in defaults_of(SamplingParams).items() if name in NAMES},
    )
    return f"{inspect.getdoc(endpoint)}\n\n{settings.get(endpoint.__name__, '')}".rstrip()


def _in_words(settings: Mapping[str, Setting], defaults: Mapping[str, Any]) -> str:
    """Returns a line for each setting that has a default: its values, its default, and what it does."""
    return "\n".join(
        f"{name}: {setting.takes}{f', in {setting.unit}' if setting.unit else ''}; {setting.show(defaults[name])} by default."
        f" {setting.explanation}"
        for name, setting in settings.items()
        if name in defaults
    )


class Requests(Endpoints):
    """Prompts."""

    async def submit(
        self,
        prompt: str = DEFAULT_PROMPT,
        lane: int | list[int] = 0,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
        tab: str = "",
        ignore_eos: bool = False,
        system: str | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        stop: list[str] | None = None,
        edit: bool = False,
        priority: int | None = None,
        tenant: str | None = None,
    ) -> dict:
        """Submit a prompt and return the ids of its requests at once.

        With a tab's id (``Rose.tab`` in its console) it continues the chat in that tab's lane, from 1, or in several; lane 0
        is the first four. Null settings are the lane's; with ``edit`` the prompt replaces the last question. Without a tab
        it is a request of its own that only the live views show, greedy by default. ``ignore_eos``: answer exactly
        ``max_new_tokens`` tokens.
        """
        with refusals_as_errors():
            given = _given(
                max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, system=system, top_p=top_p,
                top_k=top_k, min_p=min_p, repetition_penalty=repetition_penalty, stop=stop, priority=priority, tenant=tenant,
            )  # fmt: skip
            lanes, tab_id = _lanes(lane), _tab(tab)
            whole, instead = _switch(ignore_eos, "ignore_eos"), _switch(edit, "edit")
            if not tab_id:
                params = dataclasses.replace(_params(given), ignore_eos=whole)
                return {"ids": [(await self._ask(prompt, params, system=system)).request_id]}
            send = partial(self._to_lanes, prompt, lanes, tab_id, given, ignore_eos=whole, edit=instead)
            return {"ids": await self.submissions.run(send)}

    async def chat(
        self,
        prompt: str = DEFAULT_PROMPT,
        max_new_tokens: int | None = SamplingParams.max_new_tokens,
        temperature: float | None = SamplingParams.temperature,
        seed: int | None = None,
        messages: list[dict] | None = None,
        system: str | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        stop: list[str] | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        request: gr.Request = None,  # type: ignore[assignment]
    ) -> AsyncIterator[str]:
        """Submit a prompt, or a whole conversation as ``messages`` of role and content; returns the answer's text.

        A job that is iterated over yields the text so far twice a second. A client that disconnects aborts its request.
        """
        with refusals_as_errors():
            given = _given(
                max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, system=system, top_p=top_p,
                top_k=top_k, min_p=min_p, repetition_penalty=repetition_penalty, stop=stop, priority=priority, tenant=tenant,
            )  # fmt: skip
            stream = (await self._ask(prompt, _params(given), system=system, messages=messages)).stream
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
        send = partial(self.playground.chats.ask, prompt, params, system=system, messages=messages)
        return await self.submissions.ask(send, lambda tracked: tracked.stream.cancel())

    def _to_lanes(
        self, prompt: Any, lanes: list[int], tab_id: str, given: Mapping[str, Any], *, ignore_eos: bool, edit: bool
    ) -> list[int]:
        """Continue the chats of a tab's lanes, with their own settings unless given; returns the requests' IDs."""
        ids: list[int] = []
        for lane in lanes:
            settings = self.playground.chats.settings(tab_id, lane).changed(given)
            params = dataclasses.replace(settings.params(), ignore_eos=ignore_eos)
            ids += self.playground.chats.send(
                prompt, lanes=[lane], tab_id=tab_id, params=params, system=settings.system, edit=edit
            )
        return ids


class Lanes(Endpoints):
    """The chats of a tab."""

    async def new_chat(self, lane: int | list[int] = 0, tab: str = "") -> int:
        """Stop and clear the chat in a tab's lane, 0 for all of its lanes; returns how many had one."""
        with refusals_as_errors():
            clear = partial(self.playground.chats.new_chat, lanes=_lanes(lane, MAX_LANES), tab_id=_tab(tab))
            return await self.submissions.run(clear)  # may wait for a submit to the same lane

    async def regenerate(self, lane: int | list[int] = 0, tab: str = "") -> dict:
        """Ask the last question of a tab's lane again with another seed, 0 for all of its lanes; returns the ids."""
        with refusals_as_errors():
            again = partial(self.playground.chats.regenerate, lanes=_lanes(lane, MAX_LANES), tab_id=_tab(tab))
            return {"ids": await self.submissions.run(again)}


class Steering(Endpoints):
    """Traffic and knobs."""

    async def burst(
        self,
        size: int = DEFAULT_BURST,
        kind: str = "shared head",
        max_new_tokens: int = DEFAULT_ANSWER,
        seed: int | None = None,
        tab: str = "",
        tenant: str | None = None,
        priority: int = 0,
    ) -> dict:
        """Submit many requests at once: unique, equal, shared head, or mix (every fourth 64 times as long).

        The same seed submits the same prompts again; without one they differ each time. ``tenant`` and ``priority`` are
        for the scheduling policies.
        """
        with refusals_as_errors():
            size = whole_number(size, "size")
            send = partial(
                self.playground.traffic.burst,
                size=size,
                kind=kind,
                max_new_tokens=whole_number(max_new_tokens, "max_new_tokens"),
                seed=None if seed is None else whole_number(seed, "seed"),
                tab_id=_tab(tab),
                tenant=tenant or None,
                priority=whole_number(priority, "priority"),
            )
            made = await self.submissions.run(send)
        if made.size < size:
            warn(f"The engine accepted {made.size} of {size} requests: too many are waiting already.")
        return {"burst": made.burst_id, "seed": made.seed, "ids": [tracked.request_id for tracked in made.requests]}

    async def steady(
        self,
        rate: float = DEFAULT_RATE,
        kind: str = "shared head",
        max_new_tokens: int = DEFAULT_ANSWER,
        spacing: str = "poisson",
        seed: int | None = None,
        tab: str = "",
        tenant: str | None = None,
        priority: int = 0,
    ) -> dict | None:
        """Send requests at a rate a second until that is stopped, whether or not earlier ones are answered.

        It ends with the tab, when too many of its requests wait, after an hour, with ``/stop``, or with a rate of 0,
        which leaves what was sent to be answered. ``spacing`` is poisson or even. Without a seed, traffic that runs goes
        on with its own under the new plan. Returns the traffic's figures, which the tab's polls have too; null where
        there was none to stop.
        """
        with refusals_as_errors():
            tab_id = _tab(tab)
            if rate == 0 and not isinstance(rate, bool) and tab_id:
                return next((steady.figures() for steady in self.playground.traffic.stop("steady", tab_id)), None)
            start = partial(
                self.playground.traffic.start_steady,
                rate=rate,
                spacing=spacing,  # type: ignore[arg-type]  # checked
                kind=kind,
                max_new_tokens=whole_number(max_new_tokens, "max_new_tokens"),
                seed=None if seed is None else whole_number(seed, "seed"),
                tab_id=tab_id,
                tenant=tenant or None,
                priority=whole_number(priority, "priority"),
            )
            return (await self.submissions.run(start)).figures()

    def set_knobs(self, knobs: dict | None = None) -> dict:
        """Change any knobs, as a JSON object; returns all of them. Text is read as what is typed into a knob's box."""
        with refusals_as_errors():
            asked = {} if knobs is None else json_object(knobs, "the knobs", '{"prefill_max_tokens": 256}')
            changes = {
                name: read_knob(name, value) if isinstance(value, str) else value for name, value in asked.items()
            }
            return self.playground.set_knobs(changes)

    def stop(self, ids: list[int] | None = None, tab: str = "", lane: int = 0) -> int:
        """Stop requests: those with these ids, those of a tab or of one of its lanes, or else all; returns how many."""
        with refusals_as_errors():
            number = _lane(lane) or None
            tab_id, listed = check_tab_id(tab) if number else _tab(tab), None if ids is None else _ids(ids)
            return self.playground.stop(tab_id=tab_id, lane=number, ids=listed)


class Demos(Endpoints):
    """The guided demos of a tab."""

    def start_demo(self, name: str = next(iter(DEMOS)), tab: str = "") -> str:
        """Play a demo in a tab; returns its title. Whatever is sent from that tab, and any change of a knob, ends it."""
        with refusals_as_errors():
            return self.playground.start_demo(name, check_tab_id(tab)).title

    def next_caption(self, tab: str = "") -> bool:
        """Go on to the next caption of a tab's demo; returns whether there is one."""
        with refusals_as_errors():
            return self.playground.demos.next(check_tab_id(tab))

    def end_demo(self, tab: str = "") -> bool:
        """End a tab's demo; returns whether there was one."""
        with refusals_as_errors():
            return self.playground.demos.stop(check_tab_id(tab))


def _tab(tab: Any) -> str:
    """Returns a tab's ID, or "" for none."""
    if tab in (None, ""):
        return ""
    check_tab_id(tab)
    return str(tab)


def _switch(value: Any, name: str) -> bool:
    if not isinstance(value, bool | None):
        raise ValueError(f"{name} is {shown(value)}: use true or false")
    return bool(value)


def _ids(ids: Any) -> list[int]:
    """Returns the IDs of requests, from a list or a single one."""
    listed = ids if isinstance(ids, list) else [ids]
    if len(listed) > MAX_IDS:
        raise ValueError(f"there are {len(listed):,} ids: name at most {MAX_IDS:,} at once, or none to stop all")
    return [whole_number(number, "a request's id") for number in listed]


def _lanes(lane: Any, all_of_them: int = DEFAULT_LANES) -> list[int]:
    """Returns the lanes meant by a list, a single number, or 0 for the first ``all_of_them``."""
    if isinstance(lane, list):
        if not 1 <= len(lane) <= MAX_LANES:
            raise ValueError(f"there are {len(lane):,} lanes: name 1 to {MAX_LANES} of them, or 0 for all")
        return [_lane(number, 1) for number in lane]
    number = _lane(lane)
    return [number] if number else list(range(1, all_of_them + 1))


def _lane(lane: Any, least: int = 0) -> int:
    """Returns the number of a lane; 0 only if ``least`` allows it."""
    number = whole_number(lane, "lane")
    if not least <= number <= MAX_LANES:
        raise ValueError(f"there is no lane {shown(number)}: use 1 to {MAX_LANES}, or 0 for all")
    return number


def _given(**settings: Any) -> dict[str, Any]:
    """Returns those of an endpoint's settings that were given."""
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
