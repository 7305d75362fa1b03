"""``roseplay check``: its findings for our server, and for one that ignores most parameters."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from roseplay.engine.client import Engine
from roseplay.extras.servers.check.main import main
from roseplay.extras.servers.check.probes import PROBES, Finding
from roseplay.extras.servers.check.server import Server
from roseplay.extras.servers.control import Reply
from tests.at_a_port import at_a_port
from tests.serve.conftest import serving


def poor_server() -> FastAPI:
    """Supports only chats and streaming, always with the same words."""
    app = FastAPI()
    words = ["All ", "is ", "well."]

    @app.get("/v1/models")
    def models() -> Any:
        return {"data": [{"id": "poor"}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await request.json()
        if body.get("logprobs"):
            return Response("<html>oops</html>", 200)
        if body.get("temperature") == -5:
            return JSONResponse("no", 400)
        if not body.get("stream"):
            choice = {"message": {"content": "".join(words)}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 7}
            return JSONResponse({"choices": [choice], "usage": usage})
        lines = [f"data: {json.dumps({'choices': [{'delta': {'content': word}}]})}\n\n" for word in words]
        return StreamingResponse(iter([": comment\n\n", *lines]), media_type="text/event-stream")

    return app


def check(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    code = main([*flags, "--json"])
    return code, json.loads(capsys.readouterr().out)["features"]


def test_our_server_answers_everything(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(engine, key="k") as address:
        assert main([address, "--api-key", "wrong"]) == 2
        assert capsys.readouterr().err == f"roseplay check: {address} asks for a key: give it with --api-key\n"
        code, found = check(capsys, f"{address}/v1/", "--api-key", "k")
    assert code == 0
    assert {name: one for name, one in found.items() if one["found"] != "yes"} == {}
    assert found["metrics"]["detail"] == "vLLM's names"


def test_a_model_can_be_named(address: str) -> None:
    with closing(Server(address, model="gpt-9")) as server:
        assert server.chat().status == 404
    with closing(Server(address)) as server:
        assert (server.model, server.chat().status) == ("tiny-chat", 200)


def test_what_another_server_ignores_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    with at_a_port(poor_server()) as address:
        code, found = check(capsys, address)
    assert code == 0
    yes = {name for name, one in found.items() if one["found"] == "yes"}
    assert yes == {"chats"}
    assert found["streams"]["found"] == "partly" and "[DONE]" in found["streams"]["detail"]
    expected = {
        "completions": "404: Not Found",
        "finish_reason": "'stop' where the limit of tokens was reached",
        "usage": "7 total tokens are not prompt plus completion",
        "usage of streams": "the last chunk has none",
        "cached tokens": "usage does not include them",
        "n": "n is ignored",
        "seed": "other seeds gave the same answer",
        "stop": "an answer that should end before 'is' ended with 'stop'",
        "logprobs": "status 200: oops",
        "ignore_eos": "the answer ended after 3 of 200 tokens",
        "refuses what it does not know": "it is ignored",
        "404 for another model": "any name is accepted",
        "runtime_config": "404: Not Found",
        "aborts when a client leaves": "its metrics do not report how many requests are running",
    }
    assert {name: found[name]["detail"] for name in expected} == expected


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ("aabc", Finding("yes")),
        ("aaab", Finding("yes")),  # two seeds may draw the same
        ("aaaa", Finding("no", "other seeds gave the same answer")),
        ("abcd", Finding("no", "the same seed gave two answers")),
    ],
)
def test_seeds_are_told_apart_by_three_of_them(answers: str, found: Finding) -> None:
    replies = [json.dumps({"choices": [{"message": {"content": answer}}]}).encode() for answer in answers]
    server = SimpleNamespace(chat=lambda *_, **__: Reply(200, replies.pop(0)))
    assert PROBES["seed"](server) == found  # type: ignore[arg-type]


def test_nothing_of_a_server_controls_the_terminal_or_has_no_end(capsys: pytest.CaptureFixture[str]) -> None:
    app = FastAPI()
    escape = "\x1b[31m"

    @app.get("/v1/models")
    def models() -> Any:
        return {"data": [{"id": f"{escape}red"}, {"id": "named"}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        if not (await request.json()).get("stream"):
            return JSONResponse({"error": {"message": f"{escape}no\nchats", "type": "x"}}, 400)
        piece = {"choices": [{"delta": {"content": "x" * (1 << 16)}}]}
        return StreamingResponse(itertools.repeat(f"data: {json.dumps(piece)}\n\n"), media_type="text/event-stream")

    @app.get("/metrics")
    def metrics() -> Response:
        return StreamingResponse(itertools.repeat("#" * (1 << 16)))

    with at_a_port(app) as address:
        assert main([address]) == 1
    said = capsys.readouterr().out
    assert "model named" in said and "\x1b" not in said
    assert "\n  chats                          no       400: \ufffd[31mno chats\n" in said
    assert "but no [DONE]" in said and "longer than" in said


def test_a_stream_is_read_no_longer_than_a_request_may_take() -> None:
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat() -> Response:
        async def slowly() -> AsyncIterator[str]:
            while True:
                yield 'data: {"choices": []}\n\n'
                await asyncio.sleep(0.05)

        return StreamingResponse(slowly(), media_type="text/event-stream")

    with at_a_port(app) as address:
        server = Server(address, model="slow", timeout=1)
        events = server.stream_chat()
        server.close()
    assert events.chunks and not events.done and max(events.times_s) <= 1


@pytest.mark.timeout(60)
def test_metrics_of_any_kind_are_read_in_linear_time(capsys: pytest.CaptureFixture[str]) -> None:
    app = poor_server()

    @app.get("/metrics")
    def metrics() -> Response:
        return Response("vllm:num_requests_running{\n" * 200_000 + "vllm:num_requests_running 1.2.3\n")

    with at_a_port(app) as address:
        code, found = check(capsys, address)
    assert code == 0 and found["metrics"]["detail"] == "not the names of a known engine"
    assert found["aborts when a client leaves"]["found"] == "unknown"


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        for url in (f"http://127.0.0.1:{taken.getsockname()[1]}", "no-scheme", "http://[bad", "http://"):
            assert main([url]) == 2
            assert capsys.readouterr().err.count("\n") == 1
