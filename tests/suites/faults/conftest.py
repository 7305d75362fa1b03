"""The engines that faults are injected into, and a table of the outcomes at the end of the run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import pytest

from roseplay import Engine
from tests.suites.faults import scene


@pytest.fixture
def outcome(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Record what the clients saw. The fault counts as survived if the test passes."""
    noted = request.node.user_properties  # part of the test's report, which pytest-xdist workers send
    not_injected = ("fault", [request.node.name, "was not injected"])
    noted.append(not_injected)

    def note(name: str, seen: str) -> None:
        noted[:] = [one for one in noted if one is not not_injected] + [("fault", [name, seen])]

    return note


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.passed = report.passed  # type: ignore[attr-defined]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    outcomes = [
        (*value, report.passed) for report in reports for name, value in report.user_properties if name == "fault"
    ]
    if not outcomes:
        return
    terminalreporter.section("fault injection")
    if config.get_verbosity() > 0:
        width = max(len(name) for name, _, _ in outcomes)
        for name, seen, survived in outcomes:
            terminalreporter.line(f"{'ok    ' if survived else 'FAILED'} {name:{width}}  {seen}")
    survivors = sum(survived for _, _, survived in outcomes)
    terminalreporter.line(f"faults injected: {len(outcomes)}, survived: {survivors}")


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
