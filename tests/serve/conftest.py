"""The API's own application at a local port, with an engine that has the embedded model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI

from roseplay.config import Knobs
from roseplay.engine.client import Engine
from roseplay.serve.app import ServedEngine, create_app
from roseplay.serve.drain import Drain
from roseplay.serve.guard import allowed_hosts
from tests.at_a_port import at_a_port


@pytest.fixture(scope="package")
def engine() -> Iterator[Engine]:
    with Engine("tiny-chat", worker="thread", threads=1, num_blocks=200, knobs=Knobs(max_batch_size=8)) as engine:
        yield engine


@pytest.fixture
def in_slow_motion(engine: Engine) -> Iterator[None]:
    """Makes steps long enough for a reader of a stream to see each of them, even on a busy machine."""
    engine.set_knobs(slow_motion=8.0)
    yield
    engine.set_knobs(slow_motion=1.0)


def app_of(engine: Any, **options: Any) -> FastAPI:
    """The application that serves the API of an engine."""
    hosts = {*allowed_hosts("127.0.0.1"), "testserver"}
    return create_app(ServedEngine(engine), hosts, **{"drain": Drain(), **options})


@contextmanager
def serving(engine: Any, **options: Any) -> Iterator[str]:
    """Serve the API of an engine at a free port; yields its address."""
    with at_a_port(app_of(engine, **options)) as address:
        yield address


@pytest.fixture(scope="package")
def address(engine: Engine) -> Iterator[str]:
    with serving(engine) as address:
        yield address
