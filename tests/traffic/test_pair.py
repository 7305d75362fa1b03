"""The data of two runs in one drawing."""

from roseplay.traffic.pair import MOST_GAPS, thinned


def test_few_gaps_are_kept_as_they_are_and_those_that_look_alike_once() -> None:
    assert thinned([(10.2, 5.01), (9.0, 4.0), (9.8, 5.04)]) == [[9, 4.0], [10, 5.0]]


def test_of_many_gaps_the_longest_and_an_even_choice_of_the_others_are_kept() -> None:
    gaps = [(10.0 * i, 5.0 + i % 3) for i in range(5000)]
    gaps[2500:2505] = [(25_000.0 + i, 400.0 + i) for i in range(5)]
    kept = thinned(gaps)
    assert len(kept) == MOST_GAPS
    assert kept == sorted(kept)
    assert {ms for _, ms in kept} >= {400.0, 401.0, 402.0, 403.0, 404.0}
    quarters = [sum(low <= t < low + 12_500 for t, _ in kept) for low in range(0, 50_000, 12_500)]
    assert min(quarters) > 60
