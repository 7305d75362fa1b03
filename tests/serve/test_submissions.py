"""Submits whose caller has stopped waiting: the requests that they have enqueued are aborted."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

import httpx
import pytest

from roseplay.engine import grammar_checks
from roseplay.engine.client import Engine
from roseplay.engine.grammar_checks import GrammarChecks
from roseplay.engine.stream import Stream
from roseplay.serve.app import ServedEngine, create_app
from roseplay.serve.drain import Drain
from roseplay.serve.guard import allowed_hosts
from roseplay.serve.submissions import SUBMITTING, Submissions
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
            asking.cancel()  # as a server does that ends
            assert (await asking).json()["error"]["code"] == "draining"
        engine.free.set()
        await asyncio.to_thread(wait_until, lambda: len(engine.streams) == 2 and not engine.num_unfinished)

    asyncio.run(leave())


class Numbers:
    """A tokenizer for words that are numbers, which keeps what it was asked for."""

    chat_template = None

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        self.asked.append(text)
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, token_ids: list[int]) -> str:
        self.asked.append(token_ids)
        return " ".join(map(str, token_ids))


CHAT = {"model": "fake-chat", "messages": [{"role": "user", "content": "1"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "1"}),
        ("/tokenize", {"messages": CHAT["messages"]}),
        ("/detokenize", {"tokens": [1]}),
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        ("/v1/completions", {"model": "fake-chat", "prompt": "1"}),
    ],
)
def test_a_call_whose_client_has_left_takes_no_turn(path: str, body: dict[str, Any]) -> None:
    engine = FakeEngine()
    tokenizer: Any = Numbers()
    engine.tokenizer = tokenizer
    served = ServedEngine(engine)
    app = create_app(served, allowed_hosts("127.0.0.1"), drain=Drain())
    arrived = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return arrived.pop() if arrived else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def leave() -> None:
        free = threading.Event()
        held = [asyncio.ensure_future(served.submissions.run(free.wait, 30)) for _ in range(SUBMITTING)]
        await asyncio.sleep(0)
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
        try:
            await app({**scope, "headers": headers, "root_path": "", "http_version": "1.1"}, receive, send)
        finally:
            free.set()
        await asyncio.gather(*held)
        assert await served.submissions.run(lambda: "a later call") == "a later call"

    asyncio.run(leave())
    assert sent[0]["status"] == 499
    assert tokenizer.asked == [] and not engine.streams


NEVER = (sys.executable, "-c", "import time; time.sleep(60)")  # a process that checks no grammar


def test_requests_whose_grammar_is_checked_hold_no_thread_and_end_with_their_clients(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = GrammarChecks(None, NEVER)
    monkeypatch.setitem(grammar_checks._of_tokenizers, engine.tokenizer, checks)
    body = {"model": "tiny-chat", "prompt": "Hi", "max_tokens": 1}

    async def ask() -> None:
        transport = httpx.ASGITransport(app_of(engine))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            structured = [{**body, "structured_outputs": {"choice": [str(n)]}} for n in range(SUBMITTING + 4)]
            asking = [asyncio.ensure_future(client.post("/v1/completions", json=one)) for one in structured]
            await asyncio.to_thread(wait_until, lambda: len(checks._waiting) == len(structured))
            assert (await client.post("/v1/completions", json=body)).status_code == 200
            for one in asking:
                one.cancel()
            assert {reply.status_code for reply in await asyncio.gather(*asking)} == {503}
        await asyncio.to_thread(wait_until, lambda: not checks._waiting)

    asyncio.run(ask())
