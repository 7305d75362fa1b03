"""A drain, its gate and the server's signals, without a running server."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from roseplay.serve.app import ServedEngine, create_app
from roseplay.serve.drain import Drain, DrainGate, DrainingServer
from roseplay.serve.interrupts import Interrupts
from tests.play.fake_engine import FakeEngine
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


def server(drain: Drain, grace_s: float) -> DrainingServer:
    return DrainingServer(uvicorn.Config(Starlette()), drain, grace_s, Interrupts())


def test_a_signal_ends_a_server_without_requests_at_once(drain: Drain) -> None:
    ending = server(drain, 30)
    ending.handle_exit(signal.SIGTERM, None)
    assert ending.should_exit and not ending.force_exit and drain.began


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
    drain.running = 1
    ending = server(drain, grace_s)
    ending.handle_exit(signal.SIGTERM, None)
    if grace_s:
        assert not ending.should_exit
        drain.running = 0
    wait_until(lambda: ending.should_exit)
    assert "for 1 request of the API to finish" in capsys.readouterr().err


def test_a_server_that_ends_is_well_but_not_ready(drain: Drain) -> None:
    served: Any = ServedEngine(FakeEngine())  # type: ignore[arg-type]
    client = TestClient(create_app(served, {"testserver"}, drain=drain))
    assert client.get("/ready").json()["status"] == client.get("/health").json()["status"] == "ok"
    drain.begin()
    ready, health = client.get("/ready"), client.get("/health")
    assert (ready.status_code, health.status_code) == (503, 200)
    assert ready.json()["detail"] == ready.json()["status"] == "the server is shutting down and accepts no new requests"
    assert (health.json()["status"], health.json()["model"]) == ("ok", "fake-chat")
    assert ready.headers["cache-control"] == "no-store"
    served.engine.wrong = "the worker stands"
    assert client.get("/health").status_code == 503
    assert client.get("/ready").json()["detail"] == "the worker stands"
