"""The engines that faults are injected into."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import pytest

from roseplay import Engine
from tests.suites.faults import scene


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.passed = report.passed  # type: ignore[attr-defined]
    return report


@pytest.fixture(scope="session")
def shared() -> Iterator[scene.Shared]:
    """The engines that outlive their faults, each with its page."""
    with contextlib.closing(scene.Shared()) as shared:
        yield shared


@pytest.fixture
def served(request: pytest.FixtureRequest, shared: scene.Shared) -> Iterator[tuple[Engine, scene.Page]]:
    """The shared engine and its page. If a test fails, the next one gets new ones."""
    yield shared.get()
    if not getattr(request.node, "passed", False):
        shared.discard()


@pytest.fixture(scope="session")
def expected() -> dict[str, list[int]]:
    """The clients' tokens without any fault."""
    with scene.open_engine() as engine:
        streams = scene.begin(engine)
        for stream in streams.values():
            assert stream.result(scene.WAIT_S).finish_reason == "length"
        return scene.tokens(streams)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Disable logging: pytest would keep hundreds of tracebacks."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
