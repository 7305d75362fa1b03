"""The rule that decides whether a result differs between two settings, checked with generated values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseplay.traffic.difference import LEAST_RATIO, LEAST_RATIO_OF_ONE_RUN, Difference, difference, least_ratio

VALUES = st.lists(st.one_of(st.none(), st.floats(0, 1e6, allow_nan=False)), min_size=0, max_size=5)


@pytest.mark.parametrize(
    ("a", "b", "better", "verdict"),
    [
        ([10, 11, 12], [7, 8, 9], "lower", "better"),
        ([10, 11, 12], [7, 8, 9], "higher", "worse"),
        ([7, 8, 9], [10, 11, 12], "lower", "worse"),
        ([10, 20, 30], [9, 12, 15], "lower", "within"),  # the ranges overlap
        ([10, 10.1], [10.2, 10.3], "lower", "within"),  # the ranges are apart, but the ratio is too small
        ([10], [9], "lower", "within"),  # single runs must differ by more
        ([10], [8], "lower", "better"),
        ([0, 0], [3, 4], "lower", "worse"),
        ([0], [0], "higher", "within"),
        ([], [1], "lower", "unknown"),
        ([None, None], [1, 2], "lower", "unknown"),
        ([None, 5], [20], "lower", "worse"),
    ],
)
def test_verdicts(a, b, better, verdict) -> None:
    assert difference(a, b, better=better).verdict == verdict


def test_figures_are_medians_and_ranges() -> None:
    assert difference([30.0, 10.0, None, 20.0], [5.0, 6.0, 7.0], better="lower") == Difference(
        "better", 20.0, 6.0, (10.0, 30.0), (5.0, 7.0), 0.3, 3
    )
    assert difference([0.0], [1.0], better="lower").ratio is None


@given(VALUES, VALUES, st.sampled_from(["higher", "lower"]))
def test_a_clear_verdict_needs_ranges_apart_and_a_ratio_and_swapped_settings_get_its_opposite(a, b, better) -> None:
    found, swapped = difference(a, b, better=better), difference(b, a, better=better)
    assert swapped.verdict == {"better": "worse", "worse": "better"}.get(found.verdict, found.verdict)
    assert not difference(a, a[::-1], better=better).clear
    assert (found.verdict == "unknown") == (found.a is None or found.b is None)
    if found.clear:
        assert found.a_range and found.b_range
        low, high = sorted((found.a_range, found.b_range))
        assert low[1] < high[0]
        low_median, high_median = sorted((found.a, found.b))
        assert low_median == 0 or high_median >= least_ratio(found.repeats) * low_median * (1 - 1e-9)
        assert (found.verdict == "better") == ((found.b_range < found.a_range) == (better == "lower"))


def test_one_run_each_needs_a_larger_ratio() -> None:
    assert least_ratio(1) == LEAST_RATIO_OF_ONE_RUN > LEAST_RATIO == least_ratio(2)
    assert difference([100.0], [114.0], better="lower").verdict == "within"
    assert difference([100.0, 100.0], [114.0, 114.0], better="lower").verdict == "worse"
