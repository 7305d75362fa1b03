"""More simultaneous requests than the queue holds: each is answered or refused, and refusals free their places."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from roseplay.config import EngineConfig, Knobs
from roseplay.engine.client import Engine
from roseplay.engine.stream import Stream
from tests.play.fake_engine import FakeEngine
from tests.serve.conftest import app_of, serving
from tests.waiting import wait_until

BODY: dict[str, Any] = {"model": "tiny-chat", "prompt": "Once", "max_tokens": 6, "ignore_eos": True}
LIMITS = httpx.Limits(max_connections=None)


async def ask(address: str, bodies: list[Any]) -> list[httpx.Response]:
    async with httpx.AsyncClient(timeout=120, limits=LIMITS, trust_env=False) as client:
        return await asyncio.gather(*(client.post(f"{address}/v1/completions", json=body) for body in bodies))


def test_every_one_of_many_is_answered_or_refused() -> None:
    config = EngineConfig(worker="thread", threads=1, num_blocks=100, max_waiting=16)
    with Engine("tiny-chat", config=config, knobs=Knobs(max_batch_size=4)) as engine, serving(engine) as address:
        replies = asyncio.run(ask(address, [BODY] * 100))
        counts = Counter(reply.status_code for reply in replies)
        assert set(counts) == {200, 429} and counts[200] >= 16
        for reply in replies:
            if reply.status_code == 429:
                assert int(reply.headers["retry-after"]) > 0
                error = reply.json()["error"]
                assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
                assert error["message"].startswith("16 requests are already waiting")
            else:
                assert reply.json()["usage"]["completion_tokens"] == 6
        assert engine.num_unfinished == 0

        # Requests refused for other reasons free their places too, as do clients that disconnect while sending.
        wrong = asyncio.run(ask(address, [{**BODY, "max_tokens": -1}] * 16))
        assert {reply.status_code for reply in wrong} == {400}
        port = int(address.rsplit(":", 1)[1])
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port)) as half:
                half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        wait_until(
            lambda: {reply.status_code for reply in asyncio.run(ask(address, [BODY] * 16))} == {200},
            "the server notices that they disconnected",
        )


class HeldEngine(FakeEngine):
    """Has the request at once, but ``submit`` returns only when a test says so."""

    def __init__(self, max_waiting: int) -> None:
        super().__init__(max_waiting=max_waiting)
        self.returns = threading.Event()

    def submit(self, *args: Any, **named: Any) -> Stream:
        stream = super().submit(*args, **named)
        assert self.returns.wait(60)
        return stream


def test_a_request_takes_one_place_while_it_is_submitted() -> None:
    engine, body = HeldEngine(max_waiting=2), {"model": "fake-chat", "prompt": [1, 2], "max_tokens": 1}
    with serving(engine) as address, ThreadPoolExecutor(2) as pool:
        try:
            for count in (1, 2):
                asked = pool.submit(httpx.post, f"{address}/v1/completions", json=body, timeout=60)
                wait_until(lambda: asked.done() or engine.num_unfinished >= count)  # noqa: B023
                assert not asked.done(), asked.result().text
            assert httpx.post(f"{address}/v1/completions", json=body, timeout=60).status_code == 429
        finally:
            engine.returns.set()
            engine.close()


def test_a_request_that_finds_too_little_room_leaves_nothing_behind() -> None:
    engine = FakeEngine(max_waiting=2)
    client = TestClient(app_of(engine))
    refused = client.post("/v1/completions", json={"model": "fake-chat", "prompt": [1, 2], "n": 3})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert refused.headers["retry-after"] == "1"
    assert len(engine.streams) == 2 and engine.num_unfinished == 0


def test_only_requests_for_answers_need_room() -> None:
    engine = FakeEngine(max_waiting=1)
    client = TestClient(app_of(engine))
    engine.submit([1, 2])  # is never scheduled
    asks = ["/v1/completions", "/v1/chat/completions"]
    assert [client.post(path).status_code for path in asks] == [429, 429]
    assert [client.get(path).status_code for path in asks] == [405, 405]
    assert client.post("/reset_prefix_cache").status_code == 200
    engine.abort_all()
    assert [client.post(path).status_code for path in asks] == [400, 400]  # they have no body


def test_a_full_queue_refuses_before_a_body_has_come() -> None:
    engine = FakeEngine(max_waiting=1)
    engine.submit([1, 2])  # is never scheduled
    with serving(engine) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as half:
            half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
            assert half.recv(1000).startswith(b"HTTP/1.1 429 ")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_256_streams_at_once() -> None:
    config = EngineConfig(worker="process", threads=1, num_blocks=2000)

    async def read(client: httpx.AsyncClient, address: str) -> str:
        body = {**BODY, "max_tokens": 40, "stream": True}
        async with client.stream("POST", f"{address}/v1/completions", json=body) as reply:
            assert reply.status_code == 200
            return "".join([text async for text in reply.aiter_text()])

    async def all_of_them(address: str) -> list[str]:
        async with httpx.AsyncClient(timeout=300, limits=LIMITS, trust_env=False) as client:
            return await asyncio.gather(*(read(client, address) for _ in range(256)))

    with Engine("tiny-chat", config=config) as engine, serving(engine) as address:
        texts = asyncio.run(all_of_them(address))
    assert all(text.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in text for text in texts)
