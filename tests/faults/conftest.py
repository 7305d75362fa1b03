"""The engines that faults are injected into, and the table of what came of it at the end of the run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from roseplay import Engine
from tests.faults import scene


@dataclass
class Outcome:
    """A line of the printed table."""

    name: str
    seen: str = "was not injected"
    survived: bool = False


_outcomes = pytest.StashKey[list[Outcome]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_outcomes] = []


@pytest.fixture
def outcome(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str], None]]:
    """Note what the clients saw; the fault counts as survived where the test passes."""
    found: list[Outcome] = []

    def note(name: str, seen: str) -> None:
        found.append(Outcome(name, seen))

    yield note
    if not found:
        found.append(Outcome(request.node.name))
    passed = getattr(request.node, "passed", False)
    for one in found:
        one.survived = passed
    request.config.stash.setdefault(_outcomes, []).extend(found)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.passed = report.passed  # type: ignore[attr-defined]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    outcomes = config.stash.get(_outcomes, [])
    if not outcomes:
        return
    survived = sum(outcome.survived for outcome in outcomes)
    terminalreporter.section("fault injection")
    if config.get_verbosity() > 0:
        width = max(len(outcome.name) for outcome in outcomes)
        for outcome in outcomes:
            mark = "ok    " if outcome.survived else "FAILED"
            terminalreporter.line(f"{mark} {outcome.name:{width}}  {outcome.seen}")
    terminalreporter.line(f"faults injected: {len(outcomes)}, survived: {survived}")


@pytest.fixture(scope="session")
def shared() -> Iterator[scene.Shared]:
    """The engines of all faults that an engine outlives, each with its page."""
    with contextlib.closing(scene.Shared()) as shared:
        yield shared


@pytest.fixture
def served(request: pytest.FixtureRequest, shared: scene.Shared) -> Iterator[tuple[Engine, scene.Page]]:
    """The shared engine and its page; a test that fails spoils them for the next one, which gets others."""
    yield shared.get()
    if not getattr(request.node, "passed", False):
        shared.discard()


@pytest.fixture(scope="session")
def expected() -> dict[str, list[int]]:
    """The clients' tokens when nothing happens."""
    with scene.open_engine() as engine:
        streams = scene.begin(engine)
        for stream in streams.values():
            assert stream.result(scene.WAIT_S).finish_reason == "length"
        return scene.tokens(streams)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Log nothing: pytest would keep hundreds of tracebacks."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
