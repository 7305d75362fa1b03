from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_collection_between_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that a test session has imported, collecting before each run is most of a test's time."""
    monkeypatch.setattr("roseplay.bench.runs.gc.collect", lambda: 0)
