"""Servers of pages whose labs start their engines in threads: processes take long to start."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from roseplay import Engine
from roseplay.config import EngineConfig, Knobs
from roseplay.extras.lab.arms import open_engine
from roseplay.extras.lab.lab import Lab
from roseplay.play.playground import Playground
from tests.pages import Served
from tests.pages import serving as serving_page
from tests.play.fake_engine import FakeEngine


@contextmanager
def serving(engine: Any) -> Iterator[Served]:
    """Serve the page of an engine, then close it."""
    playground = Playground(engine)
    playground.services["lab"] = Lab(engine, open_engine=_in_a_thread)
    with serving_page(engine, playground) as served:
        yield served


def _in_a_thread(model: Any, config: EngineConfig, knobs: Knobs, cancelled: threading.Event) -> Any:
    return open_engine(model, dataclasses.replace(config, worker="thread"), knobs, cancelled)


@pytest.fixture(scope="session")
def _live() -> Iterator[Served]:
    with serving(Engine("tiny-chat", num_blocks=449)) as served:
        yield served


@pytest.fixture(scope="session")
def _mock() -> Iterator[Served]:
    with serving(FakeEngine(run=True, step_s=0.02)) as served:
        yield served
