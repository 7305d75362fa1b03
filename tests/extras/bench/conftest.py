"""Keeps measurements short."""

from __future__ import annotations

import pytest

SHORT = {
    # A test session has so many objects alive that collecting garbage before each run would dominate the test's time.
    "roseplay.extras.bench.runs.gc.collect": lambda: 0,
    "roseplay.model.ceilings._BYTES": 2**20,
    "roseplay.model.ceilings._REPEATS": 1,
    "roseplay.extras.bench.doctor.machine._CPU_MATRIX": 64,
}


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHORT.items():
        monkeypatch.setattr(name, value)
