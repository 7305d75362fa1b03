"""Submits whose caller has stopped waiting: the requests that they have enqueued are aborted."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from roseplay.engine.stream import Stream
from roseplay.serve.submissions import Submissions
from tests.play.fake_engine import FakeEngine
from tests.serve.conftest import app_of
from tests.waiting import wait_until


async def wait_for(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 30)


def test_what_is_submitted_after_its_sender_has_gone_is_cancelled() -> None:
    begun, go_on, cancelled = threading.Event(), threading.Event(), threading.Event()

    def submit() -> str:
        begun.set()
        assert go_on.wait(30)
        return "a request"

    async def leave() -> None:
        asked = asyncio.ensure_future(
            Submissions().ask(submit, lambda made: cancelled.set() if made == "a request" else None)
        )
        await wait_for(begun)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert not cancelled.is_set()
        go_on.set()
        await wait_for(cancelled)

    asyncio.run(leave())


def test_what_was_submitted_when_its_sender_goes_is_cancelled() -> None:
    cancelled: list[str] = []

    async def leave() -> None:
        submissions, made = Submissions(), threading.Event()
        asked = asyncio.ensure_future(submissions.ask(lambda: made.set() or "a request", cancelled.append))
        while not made.is_set():
            await asyncio.sleep(0)
        for thread in threading.enumerate():  # without running the loop: the result exists but is not taken
            if thread.name.startswith("AnyIO worker"):
                thread.join(0.05)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(leave())
    assert "a request" in cancelled


class HeldEngine(FakeEngine):
    """``submit`` begins when a test says so, and its requests end only when they are aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.free = threading.Event(), threading.Event()

    def submit(self, *args: Any, **named: Any) -> Stream:
        self.asked.set()
        assert self.free.wait(30)
        return super().submit(*args, **named)


def test_a_request_of_the_api_that_is_given_up_while_it_is_submitted_is_aborted() -> None:
    engine = HeldEngine()
    app = app_of(engine)

    async def leave() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            body = {"model": "fake-chat", "prompt": [1, 2], "n": 2}
            asking = asyncio.ensure_future(client.post("/v1/completions", json=body))
            await wait_for(engine.asked)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        engine.free.set()
        await asyncio.to_thread(wait_until, lambda: len(engine.streams) == 2 and not engine.num_unfinished)

    asyncio.run(leave())
