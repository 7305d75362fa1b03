"""The named endpoints: whatever a button does, ``gradio_client`` can do too.

client = gradio_client.Client("http://127.0.0.1:7860")
client.predict("What is a KV block?", api_name="/chat")
client.predict({"prefill_max_tokens": 64}, api_name="/set_knobs")
client.predict(32, "equal", api_name="/burst")
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.context import LocalContext
from gradio.data_classes import FileData

from roseplay.config import SamplingParams
from roseplay.engine.stream import Stream
from roseplay.play.lab.lab import LabBusyError
from roseplay.play.lanes import MAX_LANES
from roseplay.play.playground import Playground, parse_changes
from roseplay.play.recording.exports import KINDS
from roseplay.play.recording.exports import export as make_export
from roseplay.play.sampling import NAMES, read
from roseplay.play.traffic import DEFAULT_ANSWER, DEFAULT_BURST, DEFAULT_LANES, REFUSALS, refused

DEFAULT_PROMPT = "What is a KV block?"
LAB_POLL_S = 0.1
LOOK_S = 0.5  # how often /chat tells what has come, and finds out whether anybody is still there
GONE_AFTER_S = 600.0


def add_endpoints(playground: Playground) -> None:
    """Add the endpoints to the page that is being built."""

    def submit(
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
        """Send a prompt and answer at once with the ids of its requests.

        With a tab's id (``Rose.tab`` in its console) that tab's lane goes on with its chat, from 1; lane 0 is the first
        four of them. What is null is as in the tab's settings; with ``edit`` the prompt takes the place of the last
        question. Without a tab, it is a request of its own that only the live views show, greedy if nothing else is said.
        ``ignore_eos``: answer exactly ``max_new_tokens`` tokens.
        """
        try:
            given = _given(locals())
            lanes = _lanes(lane)
            if not tab:
                params = _params({**given, "ignore_eos": bool(ignore_eos)})
                return {"ids": [playground.ask(prompt, params, system=system or "").request_id]}
            ids: list[int] = []
            for number in lanes:
                settings = playground.talk.settings(tab, number).changed(given)
                params = dataclasses.replace(settings.params(), ignore_eos=bool(ignore_eos))
                how = {"params": params, "system": settings.system, "edit": bool(edit)}
                ids += playground.send(prompt, lanes=[number], tab_id=tab, **how)
            return {"ids": ids}
        except (*REFUSALS, TypeError) as error:
            raise refused(error) from None

    async def chat(
        prompt: str = DEFAULT_PROMPT,
        max_new_tokens: int | None = 128,
        temperature: float | None = 0.0,
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
        """Send a prompt, or a whole conversation as ``messages`` of role and content; the result is the answer's text.

        Who iterates over the job has the text so far twice a second. A client that leaves ends its request.
        """
        try:
            params = _params(_given(locals()))
            stream = playground.ask(prompt, params, system=system or "", messages=messages).stream
        except (*REFUSALS, TypeError) as error:
            raise refused(error) from None
        queued = LocalContext.event_id.get(None) is not None
        try:
            if queued:
                # Gradio closes a generator whose client has gone, when it next gives something.
                while not await _wait(stream, LOOK_S):
                    yield stream.text
            else:
                # A plain POST to /run/chat takes the first thing that comes; but its connection tells when it is closed.
                while not await _wait(stream, LOOK_S):
                    if request is not None and await request.request.is_disconnected():
                        break
        finally:
            stream.cancel()  # of no effect once it has ended; else nobody is there to read it
        if stream.error is not None:
            raise refused(RuntimeError(stream.error))
        yield stream.text

    def new_chat(lane: int = 0, tab: str = "") -> int:
        """Stop and clear the chat of a tab's lane, 0 for all of its lanes; answers how many had one."""
        try:
            return playground.talk.new_chat(lanes=_lanes(lane, MAX_LANES), tab_id=tab)
        except (*REFUSALS, TypeError) as error:
            raise refused(error) from None

    def regenerate(lane: int = 0, tab: str = "") -> dict:
        """Ask the last question of a tab's lane again with another seed, 0 for all of its lanes; answers the ids."""
        try:
            return {"ids": playground.talk.regenerate(lanes=_lanes(lane, MAX_LANES), tab_id=tab)}
        except (*REFUSALS, TypeError) as error:
            raise refused(error) from None

    def set_sampling(settings: dict | None = None, lane: int = 0, tab: str = "") -> dict:
        """Change settings of a tab's answers, given as a JSON object, in one lane or with 0 in all; answers all of them.

        They are system, temperature, top_p, top_k, min_p, repetition_penalty, seed, max_new_tokens and stop. Null
        settings give a lane those of all lanes back, and all lanes the defaults.
        """
        try:
            number = _whole(lane, "lane")
            if settings is None:
                now = playground.talk.reset_settings(lane=number, tab_id=tab)
            else:
                now = playground.talk.set_settings(read(settings), lane=number, tab_id=tab)
            return {name: getattr(now, name) for name in NAMES}
        except (*REFUSALS, TypeError) as error:
            raise refused(error) from None

    def burst(
        size: int = DEFAULT_BURST,
        kind: str = "shared head",
        max_new_tokens: int = DEFAULT_ANSWER,
        seed: int | None = None,
        tab: str = "",
    ) -> dict:
        """Send many requests at once: unique, equal, shared head, or mix (every fourth 64 times as long).

        The same seed sends the same prompts again; without one they are others each time.
        """
        try:
            made = playground.burst(
                size=_whole(size, "size"),
                kind=kind,
                max_new_tokens=_whole(max_new_tokens, "max_new_tokens"),
                seed=None if seed is None else _whole(seed, "seed"),
                tab_id=tab,
            )
        except (*REFUSALS, TypeError) as error:
            raise refused(error) from None
        return {"burst": made.burst_id, "seed": made.seed, "ids": [tracked.request_id for tracked in made.requests]}

    def set_knobs(knobs: dict | None = None) -> dict:
        """Change any knobs, given as a JSON object; null is unlimited. Answers all of them."""
        try:
            return playground.set_knobs(parse_changes(knobs))
        except (*REFUSALS, TypeError) as error:
            raise refused(error) from None

    def stop(ids: list[int] | None = None, tab: str = "") -> int:
        """Stop the requests with these ids, those of a tab, or without either all there are; answers how many."""
        try:
            wanted = (
                None
                if ids is None
                else [_whole(i, "a request's id") for i in (ids if isinstance(ids, list) else [ids])]
            )
            return playground.stop(tab_id=tab, ids=wanted)
        except (*REFUSALS, TypeError) as error:
            raise refused(error) from None

    async def lab(
        scenario: str = "token-budget",
        a: dict | None = None,
        b: dict | None = None,
        seed: int = 0,
        repeats: int = 1,
        params: dict | None = None,
    ) -> dict:
        """Play a scenario's traffic under two settings, side by side; answers with the summary, once it is there.

        An arm is {"knobs": {...}, "config": {...}}; without one the scenario's own counts. The result itself is at
        /ui/lab/result/ and the answer's id. Chats and bursts stand still meanwhile.
        """
        body = {"scenario": scenario, "a": a, "b": b, "seed": seed, "repeats": repeats, "params": params}
        try:
            job = playground.lab.start(body)
        except (*REFUSALS, LabBusyError, TypeError) as error:
            raise refused(error) from None
        try:
            while job.running:
                await asyncio.sleep(LAB_POLL_S)
        finally:
            job.stop()  # of no effect once it has ended; else nobody is there to read it
        document = playground.lab.store.get(job.result or "")
        if document is None:
            raise refused(RuntimeError(job.error or "the lab was stopped"))
        return {"id": job.result, **document["summary"]}

    def lab_stop() -> bool:
        """Stop what the lab is doing; answers whether it was doing anything."""
        return playground.lab.stop()

    def export(kind: str = "report", tab: str = "") -> FileData:
        """The run so far as a file: recording, trace, tokens or report. Texts are those of the tab's own requests."""
        try:
            made = make_export(kind, playground.recording(tab))
        except REFUSALS as error:
            raise refused(error) from None
        return FileData(path=str(_put(folder.name, KINDS[kind].file, made)), orig_name=KINDS[kind].file)

    folder = tempfile.TemporaryDirectory(prefix="roseplay-")
    for endpoint in (submit, chat, new_chat, regenerate, set_sampling, burst, set_knobs, stop, lab, lab_stop, export):
        gr.api(endpoint, api_name=endpoint.__name__, concurrency_limit=None)


def _put(folder: str, name: str, content: bytes) -> Path:
    """A file of its own for each caller, of which Gradio takes a copy at once; older ones go."""
    for old in Path(folder).iterdir():
        if old.stat().st_mtime < time.time() - GONE_AFTER_S:
            old.unlink(missing_ok=True)
    path = Path(folder) / f"{uuid.uuid4().hex}-{name}"
    path.write_bytes(content)
    return path


def _whole(value: Any, what: str) -> int:
    """A program's whole number, as such or as text."""
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ValueError(f"{what} is {value!r}: use a whole number") from None


def _lanes(lane: Any, all_of_them: int = DEFAULT_LANES) -> list[int]:
    """The lanes that a program means: one, or with 0 the first ``all_of_them``."""
    number = _whole(lane, "lane")
    if not 0 <= number <= MAX_LANES:
        raise ValueError(f"there is no lane {lane}: use 1 to {MAX_LANES}, or 0 for all")
    return [number] if number else list(range(1, all_of_them + 1))


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of an endpoint's arguments that are settings and were given."""
    return read({name: arguments[name] for name in NAMES if arguments.get(name) is not None})


def _params(given: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**{name: value for name, value in given.items() if name != "system"})


async def _wait(stream: Stream, seconds: float) -> bool:
    """Whether the stream ends within that time."""
    try:
        async with asyncio.timeout(seconds):
            async for _ in stream:
                pass
    except TimeoutError:
        return False
    return True
