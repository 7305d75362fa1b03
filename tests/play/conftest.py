"""The page's server with a fake engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from gradio_client import Client

from roseplay.config import Knobs
from roseplay.play.page_host import PageHost
from roseplay.play.playground import Playground
from roseplay.play.server import create_app
from roseplay.serve.guard import allowed_hosts
from tests.play import inputs
from tests.play.fake_engine import FakeEngine
from tests.remote.servers import at_a_port

T = TypeVar("T")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "call" and (tried := inputs.take()):
        item.user_properties.append(("bad inputs", tried))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = [
        value
        for category in ("passed", "failed")
        for report in terminalreporter.getreports(category)
        for name, value in report.user_properties
        if name == "bad inputs"
    ]
    if counts:
        terminalreporter.line(f"bad inputs tried: {sum(counts):,}")


@contextmanager
def serving(engine: Any, playground: PageHost | None = None, **how: Any) -> Iterator[str]:
    """Serve the page of an engine at a free port; yields its address. ``how`` are more arguments of ``create_app``."""
    app = create_app(playground or Playground(engine), allowed_hosts("127.0.0.1"), **how)
    with at_a_port(app, log_level="warning") as address:
        yield address


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
    yield lambda name, *args, **named: client.predict(*args, api_name=name, **named)
    live_engine.abort_all()
    live_engine.set_knobs(**Knobs().to_dict())
