"""The named endpoints: whatever a button does, ``gradio_client`` can do as well.

client = gradio_client.Client("http://127.0.0.1:7860")
client.predict("What is a KV block?", api_name="/chat")
client.predict({"prefill_max_tokens": 64}, api_name="/set_knobs")
client.predict(32, "equal", api_name="/burst")
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import gradio as gr

from roseplay.config import Knobs, SamplingParams
from roseplay.engine.errors import EngineError
from roseplay.engine.stream import Stream
from roseplay.formats.json_text import json_object
from roseplay.formats.text import shown
from roseplay.play.bursts import DEFAULT_ANSWER, DEFAULT_BURST, DEFAULT_RATE
from roseplay.play.playground import Playground
from roseplay.play.prompt_bar import DEFAULT_LANES
from roseplay.play.session import check_tab_id
from roseplay.play.settings import NAMES, read, whole_number
from roseplay.play.web.calls import LOOK_S, Endpoints, refusal, refusals_as_errors, until
from roseplay.recording.request_registry import TrackedRequest
from roseplay.recording.schema import MAX_LANES
from roseplay.settings import Setting, defaults_of, settings_of

DEFAULT_PROMPT = "What is a KV block?"
MAX_IDS = 10_000  # in one call of /stop


def add_endpoints(playground: Playground) -> None:
    """Add the endpoints to the page that is being built."""
    requests, lanes, engine = Requests(playground), Lanes(playground), Steering(playground)
    endpoints: list[Callable[..., Any]] = [
        *(requests.submit, requests.chat, lanes.new_chat, lanes.regenerate),
        *(engine.burst, engine.steady, engine.set_knobs, engine.stop),
    ]
    for endpoint in endpoints:
        name = endpoint.__name__
        about = f"{inspect.getdoc(endpoint)}\n\n{_settings_of_endpoint(name)}".rstrip()
        gr.api(endpoint, api_name=name, api_description=about, concurrency_limit=None)


def _settings_of_endpoint(name: str) -> str:
    """Returns what the settings among an endpoint's arguments take; "" where there are none."""
    if name == "set_knobs":
        return _in_words(settings_of(Knobs), defaults_of(Knobs))
    if name not in ("submit", "chat"):
        return ""
    defaults = {field: default for field, default in defaults_of(SamplingParams).items() if field in NAMES}
    return _in_words(settings_of(SamplingParams), defaults)


def _in_words(settings: Mapping[str, Setting], defaults: Mapping[str, Any]) -> str:
    """Returns a line for each setting that has a default: what it takes, that default, and what it does."""
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
        lane: int = 0,
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
    ) -> dict:
        """Submit a prompt and return the ids of its requests at once.

        With a tab's id (``Rose.tab`` in its console) it continues the chat in that tab's lane, from 1; lane 0 is the
        first four lanes. Null settings are the lane's; with ``edit`` the prompt replaces the last question. Without a
        tab it is a request of its own that only the live views show, greedy by default. ``ignore_eos``: answer exactly
        ``max_new_tokens`` tokens.
        """
        with refusals_as_errors():
            arguments = locals()
            given, lanes, tab_id = _given(arguments), _lanes(lane), _tab(tab)
            whole, instead = _switch(ignore_eos, "ignore_eos"), _switch(edit, "edit")
            if not tab_id:
                params = _params({**given, "ignore_eos": whole})
                return {"ids": [(await self._ask(prompt, params, system=system)).request_id]}
            ids: list[int] = []
            for number in lanes:
                settings = self.playground.chats.settings(tab_id, number).changed(given)
                params = dataclasses.replace(settings.params(), ignore_eos=whole)
                how = {"params": params, "system": settings.system, "edit": instead}
                send = partial(self.playground.send, prompt, lanes=[number], tab_id=tab_id, **how)
                ids += await self.submissions.run(send)
            return {"ids": ids}

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
        request: gr.Request = None,  # type: ignore[assignment]
    ) -> AsyncIterator[str]:
        """Submit a prompt, or a whole conversation as ``messages`` of role and content; returns the answer's text.

        A job that is iterated over yields the text so far twice a second. A client that disconnects aborts its request.
        """
        with refusals_as_errors():
            params = _params(_given(locals()))
            stream = (await self._ask(prompt, params, system=system, messages=messages)).stream
        try:
            async for text in until(lambda: _wait(stream, LOOK_S), request, lambda: stream.text):
                yield text
        finally:
            stream.cancel()  # does nothing once it has ended; otherwise the client is gone
        if stream.error is not None:
            raise refusal(EngineError(stream.error))
        yield stream.text

    async def _ask(self, prompt: Any, params: SamplingParams, **how: Any) -> TrackedRequest:
        send = partial(self.playground.ask, prompt, params, **how)
        return await self.submissions.ask(send, lambda tracked: tracked.stream.cancel())


class Lanes(Endpoints):
    """The chats of a tab."""

    async def new_chat(self, lane: int = 0, tab: str = "") -> int:
        """Stop and clear the chat in a tab's lane, 0 for all of its lanes; returns how many had one."""
        with refusals_as_errors():
            clear = partial(self.playground.chats.new_chat, lanes=_lanes(lane, MAX_LANES), tab_id=_tab(tab))
            return await self.submissions.run(clear)  # may wait for a submit to the same lane

    async def regenerate(self, lane: int = 0, tab: str = "") -> dict:
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
    ) -> dict:
        """Submit many requests at once: unique, equal, shared head, or mix (every fourth 64 times as long).

        The same seed submits the same prompts again; without one they differ each time.
        """
        with refusals_as_errors():
            send = partial(
                self.playground.burst,
                size=whole_number(size, "size"),
                kind=kind,
                max_new_tokens=whole_number(max_new_tokens, "max_new_tokens"),
                seed=None if seed is None else whole_number(seed, "seed"),
                tab_id=_tab(tab),
            )
            made = await self.submissions.run(send)
        return {"burst": made.burst_id, "seed": made.seed, "ids": [tracked.request_id for tracked in made.requests]}

    def steady(
        self,
        rate: float = DEFAULT_RATE,
        kind: str = "shared head",
        max_new_tokens: int = DEFAULT_ANSWER,
        spacing: str = "poisson",
        seed: int | None = None,
        tab: str = "",
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
            return self.playground.traffic.start_steady(
                rate=rate,
                spacing=spacing,  # type: ignore[arg-type]  # checked
                kind=kind,
                max_new_tokens=whole_number(max_new_tokens, "max_new_tokens"),
                seed=None if seed is None else whole_number(seed, "seed"),
                tab_id=tab_id,
            ).figures()

    def set_knobs(self, knobs: dict | None = None) -> dict:
        """Change any knobs, as a JSON object; returns all of them."""
        with refusals_as_errors():
            changes = {} if knobs is None else json_object(knobs, "the knobs", '{"prefill_max_tokens": 256}')
            return self.playground.set_knobs(changes)

    def stop(self, ids: list[int] | None = None, tab: str = "") -> int:
        """Stop the requests with these ids, those of a tab, or without either all there are; returns how many."""
        with refusals_as_errors():
            return self.playground.stop(tab_id=_tab(tab), ids=None if ids is None else _ids(ids))


def _tab(tab: Any) -> str:
    """Returns a tab's id, or "" for none."""
    if tab in (None, ""):
        return ""
    check_tab_id(tab)
    return str(tab)


def _switch(value: Any, name: str) -> bool:
    if not isinstance(value, bool | None):
        raise ValueError(f"{name} is {shown(value)}: use true or false")
    return bool(value)


def _ids(ids: Any) -> list[int]:
    """Returns the ids of requests, from a list of them or a single one."""
    listed = ids if isinstance(ids, list) else [ids]
    if len(listed) > MAX_IDS:
        raise ValueError(f"there are {len(listed):,} ids: name at most {MAX_IDS:,} at once, or none to stop all")
    return [whole_number(number, "a request's id") for number in listed]


def _lanes(lane: Any, all_of_them: int = DEFAULT_LANES) -> list[int]:
    """Returns the lanes that a number stands for: one, or with 0 the first ``all_of_them``."""
    number = whole_number(lane, "lane")
    if not 0 <= number <= MAX_LANES:
        raise ValueError(f"there is no lane {shown(number)}: use 1 to {MAX_LANES}, or 0 for all")
    return [number] if number else list(range(1, all_of_them + 1))


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns those of an endpoint's arguments that are settings and were given."""
    return read({name: arguments[name] for name in NAMES if arguments.get(name) is not None})


def _params(given: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**{name: value for name, value in given.items() if name != "system"})


async def _wait(stream: Stream, seconds: float) -> bool:
    """Returns whether the stream ends within that time."""
    try:
        async with asyncio.timeout(seconds):
            async for _ in stream:
                pass
    except TimeoutError:
        return False
    return True
