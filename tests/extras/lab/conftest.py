from __future__ import annotations

import pytest

from tests.play.fake_engine import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    """A fake live engine that makes a step when a test says so."""
    return FakeEngine()
