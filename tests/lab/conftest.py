from __future__ import annotations

import pytest

from tests.play.fake_engine import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    """A live engine that pretends; it steps when a test says so."""
    return FakeEngine()
