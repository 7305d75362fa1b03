"""Keeps benchmark runs short: no garbage collection between runs, and small buffers for the bandwidth measurement."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    # A test session has so many objects alive that collecting garbage before each run would dominate the test's time.
    monkeypatch.setattr("roseplay.bench.runs.gc.collect", lambda: 0)
    monkeypatch.setattr("roseplay.doctor.ceilings._BYTES", 2**20)
    monkeypatch.setattr("roseplay.doctor.ceilings._REPEATS", 1)
