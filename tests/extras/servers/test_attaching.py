"""Attaching to servers that do not exist, do not allow access, or are not what they seem to be."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, StreamingResponse

from roseplay.config import Knobs
from roseplay.core.request import FinishReason
from roseplay.engine.client import Engine
from roseplay.engine.errors import EngineError, EngineStartError
from roseplay.extras.servers.control import Control, Reply
from roseplay.extras.servers.engine import HttpEngine
from roseplay.extras.servers.server import ModelCard, models_in
from roseplay.extras.servers.source import OTHER_SERVERS
from roseplay.extras.servers.timings import Timings
from roseplay.play.engine_source import Elsewhere
from tests.at_a_port import at_a_port
from tests.extras.servers.servers import Script, attached, words
from tests.serve.conftest import serving
from tests.waiting import wait_until


def start_error(url: str, **options: Any) -> str:
    with pytest.raises(EngineStartError) as caught:
        HttpEngine(url, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert start_error(url).startswith(f"nothing answers at {url}")
    for url in ("no-scheme", "http://[bad", "http://", "ftp://host/v1", ""):
        assert start_error(url)


def test_the_key(engine: Engine) -> None:
    with serving(engine, key="right") as address:
        assert start_error(address) == f"{address} asks for a key: give it with --url-api-key (api_key in a program)"
        assert "does not accept this key" in start_error(address, api_key="wrong")
        assert start_error(address, api_key="schlüssel")
        with HttpEngine(f"{address}/v1/", api_key="right\n") as remote:  # as read from a file
            assert remote.capabilities.knobs and remote.health().ok
            assert remote.submit("Once").result(timeout=60).finish_reason in (FinishReason.STOP, FinishReason.LENGTH)


def test_the_model(address: str) -> None:
    assert start_error(address, model="gpt-9") == f"{address} has no model 'gpt-9': use one of tiny-chat"
    with at_a_port(FastAPI()) as address:
        assert "lists no model" in start_error(address)
        with HttpEngine(address, model="unlisted") as remote:
            assert remote.model == "unlisted"


def test_a_server_that_is_not_ready() -> None:
    app = FastAPI()
    app.get("/v1/models")(lambda: JSONResponse({"detail": "the engine\x1b[31m is starting"}, 503))
    with at_a_port(app) as address:
        assert "not ready: the engine\ufffd[31m is starting" in start_error(address)


def test_the_page_waits_for_a_server_that_starts() -> None:
    script, ready, cancelled = Script(words("Hi")), threading.Event(), threading.Event()

    @script.app.middleware("http")
    async def starting(request: Any, call_next: Any) -> Any:
        return await call_next(request) if ready.is_set() else Response("loading", 503)

    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        (ready if len(told) == 2 else cancelled if len(told) > 2 else threading.Event()).set()

    def elsewhere(url: str, wait_s: float) -> Elsewhere:
        arguments = dict.fromkeys(("url_b", "url_b_api_key", "url_api_key", "model"))
        found = OTHER_SERVERS.elsewhere({**arguments, "url": url, "url_wait": wait_s}, None)
        assert found is not None
        return found

    with at_a_port(script.app) as address:
        with pytest.raises(EngineStartError, match="not ready"):
            elsewhere(address, 0).open(tell, cancelled)
        assert told == []
        with closing(elsewhere(address, 60).open(tell, cancelled)) as remote:
            assert remote.info.model == "scripted" and "not ready: the server replied with status 503" in told[0]
    with pytest.raises(EngineStartError, match="nothing answers"):
        elsewhere(address, 60).open(tell, cancelled)
    assert cancelled.is_set()
    with pytest.raises(EngineStartError, match="is not the address"):
        elsewhere("nonsense", 60).open(tell, threading.Event())


def test_a_server_that_says_nothing_of_itself() -> None:
    with attached(Script(words("Hi"))) as remote:
        assert remote.server.max_model_len is None and remote.info.max_model_len > 0
        assert set(remote.capabilities.reasons) >= {"queue", "kv_usage", "prefix_hit_rate", "knobs", "steps"}
        assert remote.capabilities.reasons["queue"] == "this server has no /metrics here"
        with pytest.raises(ValueError, match="runtime_config"):
            remote.set_knobs(max_batch_size=3)
        assert remote.health().ok  # checked with its list of models


BLOCKS = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="%s"} 1'


@pytest.mark.parametrize("metrics", ["<html>", "vllm:nonsense{ x", BLOCKS % (1 << 24)])
def test_metrics_of_something_else(metrics: str) -> None:
    with attached(Script(words("Hi"), metrics=metrics)) as remote:
        assert not remote.capabilities.queue
        assert remote.info.num_blocks < 1 << 24


async def dripping() -> AsyncIterator[bytes]:
    while True:
        yield b"vllm:num_requests_running 1\n"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("path", ["/metrics", "/v1/models"])
def test_a_reply_that_never_ends_is_given_up(path: str) -> None:
    timings = Timings(reply_s=0.2)
    app = FastAPI()
    app.get(path)(lambda: StreamingResponse(dripping()))
    app.get("/v1/models")(lambda: {"data": [{"id": "slow"}]})
    with at_a_port(app) as address:
        if path == "/v1/models":
            assert "did not answer in time" in start_error(address, timings=timings)
        else:
            with HttpEngine(address, timings=timings) as remote:
                assert not remote.capabilities.queue


def test_a_reply_that_is_too_long_is_given_up() -> None:
    app = FastAPI()
    app.get("/v1/models")(lambda: StreamingResponse(b" " * (1 << 16) for _ in range(200)))
    with at_a_port(app) as address:
        assert "the reply is longer than 8 MiB" in start_error(address)


@pytest.mark.parametrize("close", [False, True], ids=["in time", "closed"])
def test_a_head_that_never_ends_is_given_up(close: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken: list[socket.socket] = []

        def drip() -> None:
            connection, _ = listener.accept()
            taken.append(connection)
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            with suppress(OSError):
                while True:
                    connection.sendall(b"x: y\r\n")
                    time.sleep(0.02)

        threading.Thread(target=drip, daemon=True).start()
        control = Control(f"http://127.0.0.1:{listener.getsockname()[1]}")
        if close:
            threading.Thread(target=lambda: (wait_until(lambda: taken), control.close())).start()
        with pytest.raises(EngineError if close else httpx.ReadTimeout):
            control.get("/health", 60 if close else 0.2)
        control.close()
        taken[0].close()


@pytest.mark.parametrize("method", ["set_knobs", "clear_cache"])
def test_a_call_that_waits_ends_when_the_engine_is_closed(method: str) -> None:
    asked, go_on, script = threading.Event(), threading.Event(), Script([])

    def wait() -> None:
        asked.set()
        go_on.wait(30)

    script.app.get("/v1/runtime_config")(lambda: {"knobs": Knobs().to_dict()})
    script.app.patch("/v1/runtime_config")(wait)
    script.app.post("/flush_cache")(wait)
    with attached(script) as remote:
        threading.Thread(target=lambda: (asked.wait(30), remote.close())).start()
        with pytest.raises(EngineError, match="the engine is closed"):
            getattr(remote, method)()
        go_on.set()


def test_settings_that_cannot_be_are_not_taken_over() -> None:
    script = Script(words("Hi"))
    odd = Response('{"knobs": {"slow_motion": 1' + "0" * 400 + "}}", media_type="application/json")
    script.app.get("/v1/runtime_config")(lambda: odd)
    with attached(script) as remote:
        assert not remote.capabilities.knobs


def test_a_hint_where_metrics_are_switched_off() -> None:
    card = {"owned_by": "llamacpp", "meta": {"n_ctx": 4096}}
    with attached(Script(words("Hi"), card=card)) as remote:
        assert remote.capabilities.reasons["queue"] == "llama.cpp has no /metrics here: start it with --metrics"
        assert remote.server.max_model_len == 4096


@pytest.mark.parametrize(
    ("card", "longest"),
    [
        ({"max_model_len": 1 << 27}, 1 << 27),
        ({"max_model_len": 1 << 40, "context_length": 8192}, 8192),
        ({"max_model_len": 0, "context_length": "8192"}, None),
        ({"max_model_len": True, "meta": {"n_ctx": 4096}}, 4096),
    ],
)
def test_a_length_that_no_model_has_is_left_out(card: dict[str, Any], longest: int | None) -> None:
    assert ModelCard.model_validate({"id": "m", **card}).longest == longest


def test_models_without_names_that_can_be_printed_are_skipped() -> None:
    data = [7, {"object": "model"}, {"id": 5}, {"id": "\x1b]0;x\x07"}, {"id": "x" * 999}, {"id": "named"}]
    assert [card.id for card in models_in(Reply(200, json.dumps({"data": data}).encode()))] == ["named"]
    assert models_in(Reply(200, b"[]")) == models_in(Reply(404, b'{"data": [{"id": "named"}]}')) == []


def test_it_needs_no_torch() -> None:
    code = "import sys; import roseplay.extras.servers.engine; print({'torch', 'transformers', 'gradio'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


@pytest.mark.parametrize(
    "url", ["http://user:hunter2@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?key=hunter2", "http://h/v1#hunter2"]
)
def test_an_address_with_secrets_is_refused_and_not_repeated(url: str) -> None:
    said = start_error(url)
    assert "give a key as such" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("key", ["hunter\n2", "hunter2\x00", "hünter2"])
def test_a_key_that_cannot_be_sent_is_not_repeated(address: str, key: str) -> None:
    said = start_error(address, api_key=key)
    assert "the key holds characters that cannot be sent" in said
    assert "nter" not in said


def test_bad_health_is_said_in_the_servers_words_and_none_in_time_is_bad() -> None:
    wrong, late, end = threading.Event(), threading.Event(), threading.Event()
    script = Script(words("Hi"))

    @script.app.get("/health")
    def health() -> Response:
        if late.is_set():
            end.wait(5)  # healthy, for a caller that waits longer than requested
        return JSONResponse({"detail": "the queue is stuck"}, 503) if wrong.is_set() else Response()

    wrong.set()
    with attached(script) as remote:
        bad = remote.health()
        assert (bad.ok, bad.detail) == (False, f"{remote.url} is not healthy: the queue is stuck")
        wrong.clear()
        assert remote.health().ok
        late.set()
        none = remote.health(timeout=0.05)
        end.set()
        assert (none.ok, none.detail) == (False, f"{remote.url} did not answer in time")


@pytest.mark.parametrize("path", ["/metrics", "/v1/runtime_config", "/openapi.json", "/health"])
def test_a_route_whose_reply_breaks_off_keeps_nobody_from_attaching(path: str) -> None:
    def half() -> Iterator[bytes]:
        yield b"{"
        raise OSError("the route is broken")

    app = FastAPI(openapi_url=None)
    app.get("/v1/models")(lambda: {"data": [{"id": "named"}]})
    app.get(path)(lambda: StreamingResponse(half()))
    with attached(app) as remote:
        assert remote.model == "named" and remote.health().ok
        assert remote.info.server == f"OpenAI API at {remote.url.removeprefix('http://')}"
        assert not (remote.capabilities.queue or remote.capabilities.knobs or remote.capabilities.clear_cache)


def test_closing_ends_the_threads() -> None:
    before = set(threading.enumerate())
    with attached(Script(words("Hi"))) as remote:
        began = [one for one in set(threading.enumerate()) - before if one.name.startswith("roseplay-http")]
    assert {thread.name for thread in began} >= {"roseplay-http", "roseplay-http-monitor"} and not remote.alive
    assert not any(thread.is_alive() for thread in began)


def test_metrics_may_be_at_another_path() -> None:
    script = Script(words("Hi"), metrics="process_threads 8\n")
    script.app.get("/prometheus/metrics")(lambda: Response("trtllm_num_requests_running 2\n"))
    with attached(script) as remote:
        assert (remote.server.metrics_path, remote.server.load.total.running) == ("/prometheus/metrics", 2)
    with attached(Script(words("Hi"), metrics="process_threads 8\n")) as remote:
        assert (remote.server.metrics_path, remote.server.names) == ("/metrics", None)
