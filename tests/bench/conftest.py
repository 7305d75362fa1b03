"""Keeps measurements short."""

from __future__ import annotations

import pytest

SHORT = {
    # A test session has so many objects alive that collecting garbage before each run would dominate the test's time.
    "roseplay.bench.runs.gc.collect": lambda: 0,
    "roseplay.doctor.ceilings._BYTES": 2**20,
    "roseplay.doctor.ceilings._REPEATS": 1,
    "roseplay.doctor.machine._CPU_MATRIX": 64,
}


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHORT.items():
        monkeypatch.setattr(name, value)
