"""Stopping a server: running requests may finish, new ones are refused."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from roseplay.serve.drain import Drain, DrainGate, DrainingServer
from roseplay.serve.interrupts import Interrupts
from tests.play.fake_engine import FakeEngine
from tests.serve.conftest import app_of
from tests.serve.program import MODEL, errors_of, served
from tests.waiting import wait_until


def test_the_gate_counts_the_apis_requests_and_refuses_new_ones() -> None:
    drain = Drain()

    async def reply(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(drain.running))

    async def fail(request: Request) -> PlainTextResponse:
        raise RuntimeError("a route that fails")

    routes = [Route(path, reply, methods=["GET", "POST"]) for path in ("/v1/x", "/v1", "/other")]
    gate = DrainGate(Starlette(routes=[*routes, Route("/v1/fail", fail, methods=["POST"])]), drain)
    client = TestClient(gate, raise_server_exceptions=False)
    asks = [("POST", "/v1/x"), ("GET", "/v1/x"), ("POST", "/v1"), ("POST", "/other")]
    assert [client.request(*ask).text for ask in asks] == ["1", "0", "0", "0"]
    assert client.post("/v1/fail").status_code == 500
    assert drain.running == 0
    drain.begin()
    assert [client.request(*ask).status_code for ask in asks] == [503, 200, 200, 200]
    refused = client.post("/v1/x")
    told = refused.json()["error"]
    assert (told["code"], told["type"]) == ("draining", "service_unavailable_error")
    assert (refused.headers["retry-after"], refused.headers["connection"]) == ("5", "close")


@pytest.fixture
def drain() -> Drain:
    return Drain()


def server(drain: Drain, grace_s: float, **called: Any) -> DrainingServer:
    return DrainingServer(uvicorn.Config(Starlette()), drain, grace_s, Interrupts(), **called)


def test_a_signal_ends_a_server_without_requests_at_once(drain: Drain) -> None:
    ending = server(drain, 30)
    ending.handle_exit(signal.SIGTERM, None)
    assert ending.should_exit and not ending.force_exit and drain.began


@pytest.mark.parametrize("came", [True, False])
def test_a_signal_that_came_before_the_server_handled_it_ends_it(drain: Drain, came: bool) -> None:
    interrupts = Interrupts()
    interrupts.came = came
    starting = DrainingServer(uvicorn.Config(Starlette(), log_level="critical"), drain, 30, interrupts)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=starting.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        if not came:
            wait_until(lambda: starting.started)
            assert not starting.should_exit
            starting.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def test_the_first_signal_waits_for_requests_and_the_second_does_not(
    drain: Drain, capsys: pytest.CaptureFixture[str]
) -> None:
    drain.running = 2
    ending = server(drain, 30)
    ending.handle_exit(signal.SIGINT, None)
    (waiting,) = (thread for thread in threading.enumerate() if thread.name == "roseplay-drain")
    assert drain.began and not ending.should_exit
    ending.handle_exit(signal.SIGINT, None)
    assert ending.should_exit and not ending.force_exit
    drain.running = 0
    waiting.join(30)
    assert not waiting.is_alive() and not ending.force_exit
    assert "waiting up to 30 s for 2 requests of the API to finish" in capsys.readouterr().err


@pytest.mark.parametrize("grace_s", [0.0, 30.0], ids=["time over", "finished"])
def test_the_server_ends_after_its_requests_or_its_grace_time(
    drain: Drain, grace_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    aborted: list[int] = []

    def abort() -> None:
        aborted.append(drain.running)
        drain.running = 0

    drain.running = 1
    ending = server(drain, grace_s, abort=abort)
    ending.handle_exit(signal.SIGTERM, None)
    if grace_s:
        assert not ending.should_exit
        drain.running = 0
    wait_until(lambda: ending.should_exit)
    assert aborted == ([] if grace_s else [1])
    assert "for 1 request of the API to finish" in capsys.readouterr().err


def test_a_server_that_ends_is_well_but_not_ready(drain: Drain) -> None:
    engine = FakeEngine()
    client = TestClient(app_of(engine, drain=drain))
    assert client.get("/ready").json()["status"] == client.get("/health").json()["status"] == "ok"
    drain.begin()
    ready, health = client.get("/ready"), client.get("/health")
    assert (ready.status_code, health.status_code) == (503, 200)
    assert "shutting down" in ready.json()["detail"] and ready.json()["status"] == ready.json()["detail"]
    assert (health.json()["status"], health.json()["model"]) == ("ok", "fake-chat")
    assert ready.headers["cache-control"] == "no-store"
    engine.wrong = "the worker stands"
    assert client.get("/health").status_code == 503
    assert client.get("/ready").json()["detail"] == "the worker stands"


# -- in a process of its own

LONG = {"model": MODEL, "prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}


class Stream:
    """A streamed completion in a thread, and what has arrived so far."""

    def __init__(self, address: str) -> None:
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(address,), daemon=True)
        self._thread.start()
        wait_until(lambda: len(self.lines) >= 10)

    def _read(self, address: str) -> None:
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("POST", f"{address}/v1/completions", json=LONG, timeout=60) as response,
        ):
            self.lines.extend(line for line in response.iter_lines() if line)

    def last(self) -> Any:
        """The last event before the end of the stream."""
        self._thread.join(60)
        assert not self._thread.is_alive() and self.lines[-1] == "data: [DONE]"
        return json.loads(self.lines[-2].removeprefix("data: "))


def test_a_stream_that_runs_is_finished_and_a_new_request_refused() -> None:
    with served("--worker", "process") as (process, address), httpx.Client(base_url=address, timeout=30) as kept:
        assert kept.get("/ready").status_code == 200
        stream = Stream(address)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: kept.get("/ready").status_code != 200)
        assert kept.get("/health").status_code == 200
        refused = kept.post("/v1/completions", json={**LONG, "stream": False})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert stream.last()["choices"][0]["finish_reason"] == "length"
        assert process.wait(30) == 0
        assert "waiting up to 30 s for 1 request of the API to finish" in errors_of(process)


def test_the_end_comes_at_a_second_signal() -> None:
    with served("--slow-motion", "50") as (process, address):
        stream = Stream(address)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "interrupt again to end now" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert stream.last()["error"]["code"] == "request_stopped"
        assert process.wait(20) == 0
