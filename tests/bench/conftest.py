"""Short runs: nothing is collected between them, and the machine's memory is read in small parts, once."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    # With all that a test session has imported, collecting before each run is most of a test's time.
    monkeypatch.setattr("roseplay.bench.runs.gc.collect", lambda: 0)
    monkeypatch.setattr("roseplay.bench.ceilings._BYTES", 2**20)
    monkeypatch.setattr("roseplay.bench.ceilings._REPEATS", 1)
