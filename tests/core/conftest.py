"""Prints after a run how many scheduler operations were checked."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = terminalreporter.getreports("passed")
    counts = [value for report in passed for name, value in report.user_properties if name == "operations"]
    if counts:
        terminalreporter.line(f"scheduler: {sum(map(int, map(str, counts))):,} operations checked")
