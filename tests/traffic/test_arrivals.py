from __future__ import annotations

import itertools

import pytest

from roseplay.traffic.arrivals import burst, fixed_interval, poisson


def test_a_burst_comes_at_once() -> None:
    assert burst(3) == [0.0, 0.0, 0.0]


def test_a_fixed_interval_counts_from_the_start() -> None:
    assert fixed_interval(4, 0.02) == pytest.approx([0, 0.02, 0.04, 0.06])
    assert fixed_interval(2, 0) == burst(2)


def test_poisson_is_decided_by_its_seed() -> None:
    assert poisson(100, 5.0, seed=1) == poisson(100, 5.0, seed=1)
    assert poisson(100, 5.0, seed=1) != poisson(100, 5.0, seed=2)


def test_poisson_gaps_are_exponential() -> None:
    times = poisson(20_001, 50.0)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert times[0] == 0
    assert times == sorted(times)
    assert mean == pytest.approx(1 / 50, rel=0.03)
    assert spread == pytest.approx(mean, rel=0.05)  # they are equal for an exponential distribution


@pytest.mark.parametrize(
    "call",
    [lambda: burst(0), lambda: fixed_interval(1, -1), lambda: fixed_interval(1, float("nan")), lambda: poisson(1, 0)],
)
def test_nonsense_is_refused(call) -> None:
    with pytest.raises(ValueError, match="use"):
        call()
