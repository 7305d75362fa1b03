"""The named endpoints: whatever a button does, ``gradio_client`` can do too.

client = gradio_client.Client("http://127.0.0.1:7860")
client.predict("What is a KV block?", api_name="/chat")
client.predict({"prefill_max_tokens": 64}, api_name="/set_knobs")
client.predict(32, "equal", api_name="/burst")
"""

from __future__ import annotations

import asyncio
from typing import Any

import gradio as gr

from roseplay.config import SamplingParams
from roseplay.play.lab.lab import LabBusyError
from roseplay.play.lanes import MAX_LANES
from roseplay.play.playground import Playground, parse_changes
from roseplay.play.traffic import DEFAULT_ANSWER, DEFAULT_BURST, DEFAULT_LANES, REFUSALS, refused

DEFAULT_PROMPT = "What is a KV block?"
LAB_POLL_S = 0.1


def add_endpoints(playground: Playground) -> None:
    """Add the endpoints to the page that is being built."""

    def submit(
        prompt: str = DEFAULT_PROMPT,
        lane: int = 0,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        seed: int | None = None,
        tab: str = "",
        ignore_eos: bool = False,
    ) -> dict:
        """Send a prompt and answer at once with the ids of its requests.

        With a tab's id (``Rose.tab`` in its console) the answer shows in that tab's lane, from 1; lane 0 is the
        first four of them. Without one, it is a request of its own that only the live views show. ``ignore_eos``: answer
        exactly ``max_new_tokens`` tokens.
        """
        try:
            params = _params(
                max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, ignore_eos=bool(ignore_eos)
            )
            number = _whole(lane, "lane")
            if not 0 <= number <= MAX_LANES:
                raise ValueError(f"there is no lane {lane}: use 1 to {MAX_LANES}, or 0 for all")
            if not tab:
                return {"ids": [playground.ask(prompt, params).request_id]}
            lanes = [number] if number else list(range(1, DEFAULT_LANES + 1))
            return {"ids": playground.send(prompt, lanes=lanes, tab_id=tab, params=params)}
        except (*REFUSALS, TypeError) as error:
            raise refused(error) from None

    async def chat(
        prompt: str = DEFAULT_PROMPT, max_new_tokens: int = 128, temperature: float = 0.0, seed: int | None = None
    ) -> str:
        """Send a prompt and answer with the whole text once it is there."""
        try:
            params = _params(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
            stream = playground.ask(prompt, params).stream
        except (*REFUSALS, TypeError) as error:
            raise refused(error) from None
        try:
            async for _ in stream:
                pass
        finally:
            stream.cancel()  # of no effect once it has ended; else nobody is there to read it
        if stream.error is not None:
            raise refused(RuntimeError(stream.error))
        return stream.text

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

    for endpoint in (submit, chat, burst, set_knobs, stop, lab, lab_stop):
        gr.api(endpoint, api_name=endpoint.__name__, concurrency_limit=None)


def _whole(value: Any, what: str) -> int:
    """A program's whole number, as such or as text."""
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ValueError(f"{what} is {value!r}: use a whole number") from None


def _params(**settings: Any) -> SamplingParams:
    """The settings that were given; a program's null takes the default."""
    return SamplingParams(**{name: value for name, value in settings.items() if value is not None})
