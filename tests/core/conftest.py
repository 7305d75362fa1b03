"""Ends each test's schedulers, and prints after a run how many of their operations were checked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.core.harness import Rig


@pytest.fixture(autouse=True)
def all_are_served() -> Iterator[None]:
    """What a test leaves unserved is served to its end, and must leave no block, slot or saved logits behind."""
    Rig.made.clear()
    yield
    for rig in Rig.made:
        rig.drain()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = terminalreporter.getreports("passed")
    counts = [value for report in passed for name, value in report.user_properties if name == "operations"]
    if counts:
        terminalreporter.line(f"scheduler: {sum(map(int, map(str, counts))):,} operations checked")
