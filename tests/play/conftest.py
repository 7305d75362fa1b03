"""The page's server with a fake engine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import pytest
import uvicorn
from gradio_client import Client

from roseplay.config import Knobs
from roseplay.play.engine_host import EngineHost
from roseplay.play.playground import Playground
from roseplay.play.server import create_app
from roseplay.serve.guard import allowed_hosts
from tests.play import inputs
from tests.play.fake_engine import FakeEngine
from tests.waiting import wait_until

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
def serving(engine: Any, playground: Playground | EngineHost | None = None, **how: Any) -> Iterator[str]:
    """Serve the page of an engine at a free port; yields its address. ``how`` are more arguments of ``create_app``."""
    app = create_app(playground or Playground(engine), allowed_hosts("127.0.0.1"), **how)
    with running(uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))) as address:
        yield address


_free_ports: list[int] = []  # of servers that have stopped: a browser has cached their files


@contextmanager
def running(server: uvicorn.Server) -> Iterator[str]:
    """Run a server at a free port; yields its address, and afterwards stops the server if it is still running."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(listener)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        wait_until(lambda: server.started, "the server starts")
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(timeout=10)
    if not thread.is_alive():
        _free_ports.append(port)


def _bind(listener: socket.socket) -> None:
    with suppress(IndexError, OSError):  # no port is left, or another program has taken it
        return listener.bind(("127.0.0.1", _free_ports.pop()))
    listener.bind(("127.0.0.1", 0))


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
