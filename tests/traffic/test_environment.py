from __future__ import annotations

import math

import pytest

from roseplay.traffic.environment import mean_load


@pytest.mark.parametrize(("earlier", "since"), [(0.0, 5.0), (9.0, 1.0)])
def test_a_load_from_before_does_not_count(earlier: float, since: float) -> None:
    rest = math.exp(-30 / 60)
    assert mean_load(earlier, rest * earlier + (1 - rest) * since, 30) == pytest.approx(since)
