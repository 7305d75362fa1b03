"""More requests at once than the queue takes: each is answered or refused, and refusals give their places back."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from typing import Any

import httpx
import pytest

from roseplay.config import EngineConfig, Knobs
from roseplay.engine.client import Engine
from tests.serve.conftest import serving

BODY: dict[str, Any] = {"model": "tiny-chat", "prompt": "Once", "max_tokens": 6, "ignore_eos": True}
LIMITS = httpx.Limits(max_connections=None)


async def ask(address: str, bodies: list[Any]) -> list[httpx.Response]:
    async with httpx.AsyncClient(timeout=120, limits=LIMITS, trust_env=False) as client:
        return await asyncio.gather(*(client.post(f"{address}/v1/completions", json=body) for body in bodies))


def test_every_one_of_many_is_answered_or_refused() -> None:
    config = EngineConfig(worker="thread", threads=1, num_blocks=100, max_waiting=16)
    with (
        Engine("tiny-chat", config=config, knobs=Knobs(max_batch_size=4)) as engine,
        serving(engine) as address,
    ):
        replies = asyncio.run(ask(address, [BODY] * 200))
        counts = Counter(reply.status_code for reply in replies)
        assert set(counts) == {200, 429} and counts[200] >= 16
        for reply in replies:
            if reply.status_code == 429:
                assert int(reply.headers["retry-after"]) > 0
                error = reply.json()["error"]
                assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
                assert error["message"].startswith("16 requests wait already")
            else:
                assert reply.json()["usage"]["completion_tokens"] == 6
        assert engine.num_unfinished == 0

        # Places are given back by requests that are refused for another reason, and by clients that leave while they send.
        for _ in range(3):
            wrong = asyncio.run(ask(address, [{**BODY, "max_tokens": -1}] * 16))
            assert {reply.status_code for reply in wrong} == {400}
        port = int(address.rsplit(":", 1)[1])
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port)) as half:
                half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        deadline = time.monotonic() + 20
        while True:  # until the server has noticed that they left
            replies = asyncio.run(ask(address, [BODY] * 16))
            if {reply.status_code for reply in replies} == {200}:
                break
            assert time.monotonic() < deadline


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
