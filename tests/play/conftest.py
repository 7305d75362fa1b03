"""The page's server with a fake engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from gradio_client import Client
from starlette.testclient import TestClient

from roseplay.config import Knobs
from roseplay.play.page_host import PageHost
from roseplay.play.playground import Playground
from roseplay.play.server import create_app
from roseplay.serve.guard import allowed_hosts
from tests.at_a_port import at_a_port
from tests.play.fake_engine import FakeEngine
from tests.play.model_host import ModelHost, SlowStart, model_host


def client_of(host: PageHost, **how: Any) -> TestClient:
    """A client of a host's page within this process. ``how`` are more arguments of ``create_app``."""
    return TestClient(create_app(host, allowed_hosts("127.0.0.1"), **how), base_url="http://127.0.0.1:7860")


def client_of_routes(router: APIRouter) -> TestClient:
    """A client of some routes alone, which are made in no time, unlike a page."""
    app = FastAPI()
    app.include_router(router)
    return TestClient(app)


def poll(host: PageHost, since: int = 0, **more: Any) -> dict[str, Any]:
    """The reply to a poll; without a cursor, with a snapshot."""
    return dict(json.loads(host.delta(since, **more)))


class Seconds:
    """A clock in seconds, which a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def serving(engine: Any, playground: PageHost | None = None, **how: Any) -> Iterator[str]:
    """Serve the page of an engine at a free port; yields its address. ``how`` are more arguments of ``create_app``.

    The page shows all controls at the first visit, too.
    """
    app = create_app(playground or Playground(engine), allowed_hosts("127.0.0.1"), **{"view": "full", **how})
    with at_a_port(app, log_level="warning") as address:
        yield address


@contextmanager
def serving_slow_start() -> Iterator[SlowStart]:
    """Serve the page of an engine that starts when told to, from the beginning, at ``address``."""
    with closing(SlowStart()) as slow, serving(None, slow.host) as slow.address:
        yield slow


@pytest.fixture
def engine() -> FakeEngine:
    """An engine that makes a step when a test says so."""
    return FakeEngine()


@pytest.fixture
def playground(engine: FakeEngine) -> Playground:
    """A playground that makes a frame when a test calls ``tick``."""
    return Playground(engine)


@pytest.fixture(scope="module")
def live_engine() -> FakeEngine:
    """An engine that makes steps on its own, behind ``address``."""
    return FakeEngine(run=True, step_s=0.005)


@pytest.fixture(scope="module")
def address(live_engine: FakeEngine) -> Iterator[str]:
    """A server with ``live_engine``."""
    with serving(live_engine) as address:
        yield address
    live_engine.close()


def connect(address: str, **options: Any) -> Client:
    """A Gradio client with the tests' patience: httpx's default of 5 seconds is too short on a busy machine."""
    return Client(address, verbose=False, analytics_enabled=False, httpx_kwargs={"timeout": 60}, **options)


@pytest.fixture(scope="module")
def client(address: str) -> Client:
    return connect(address)


@pytest.fixture
def call(client: Client, live_engine: FakeEngine) -> Iterator[Any]:
    """Calls an endpoint by name. Afterwards, all requests are aborted and all knobs reset."""
    yield lambda endpoint, /, *args, **named: client.predict(*args, api_name=endpoint, **named)
    live_engine.abort_all()
    live_engine.set_knobs(**Knobs().to_dict())


@pytest.fixture
def models(request: pytest.FixtureRequest) -> Iterator[ModelHost]:
    """A host whose models a test changes; a parameter has arguments for it."""
    with model_host(**getattr(request, "param", {})) as made:
        yield made
