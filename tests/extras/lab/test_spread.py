"""Repeating runs until the spread is small, and longer runs."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseplay.extras.lab.order import parse_experiment
from roseplay.extras.lab.points import is_small, spread_pct
from roseplay.extras.lab.results import experiment_of
from roseplay.extras.lab.words import sentences
from roseplay.traffic.scenarios import SCENARIOS
from tests.extras.lab.fake_arms import QUICK, MadeUpArms, in_order, ran
from tests.extras.lab.findings import has

BODY = {"scenario": "token-budget", "params": QUICK}
SWEEP = {**BODY, "sweep": {"setting": "max_batch_size", "from": 1, "to": 2, "points": 2}}


def gaps(of_a: Callable[[int], float]) -> MadeUpArms:
    """Arms whose gaps depend in A on the repeat, and are 5 ms in B, which has a prefill budget."""
    repeats = itertools.count(1)
    return MadeUpArms(lambda arm: {"itl_ms": 5.0 if arm.knobs.prefill_max_tokens else of_a(next(repeats))})


@given(st.lists(st.floats(1, 100), min_size=1, max_size=20))
def test_a_spread_is_no_wider_than_the_range_and_has_the_median_in_it(values: list[float]) -> None:
    pct = spread_pct(values)
    whole = 100 * (max(values) - min(values)) / statistics.median(values)
    assert 0 <= pct <= min(1000, whole) + 0.01
    if len(values) <= 8:
        assert pct == pytest.approx(min(1000, whole), abs=0.01)


def test_a_spread_has_the_true_median_in_it_in_95_of_100_cases_and_shrinks() -> None:
    rng, widths = random.Random(0), {}
    for count in (9, 20):
        out = {9: 1, 20: 5}[count]
        hit, widths[count] = 0, []
        for _ in range(2000):
            values = sorted(rng.lognormvariate(0, 0.2) for _ in range(count))
            low, high = values[out], values[-1 - out]
            assert spread_pct(values) == pytest.approx(100 * (high - low) / statistics.median(values), abs=0.01)
            hit += low <= 1 <= high
            widths[count].append(high - low)
        assert hit >= 0.945 * 2000
    assert statistics.mean(widths[20]) < 0.8 * statistics.mean(widths[9])


def test_a_spread_needs_three_repeats_and_a_figure_that_cannot_be_measured_none() -> None:
    assert (spread_pct([]), spread_pct([0.0, 0.0]), spread_pct([0.0, 0.0, 1.0])) == (None, 0, 1000)
    assert [is_small([5.0] * count, 1) for count in (1, 2, 3)] == [False, False, True]
    assert is_small([None] * 3, 1)


def test_both_arms_are_repeated_in_turn_until_the_spread_is_small() -> None:
    arms = gaps(lambda repeat: 10.0 if repeat in (1, 2) else 9.0 if repeat == 3 else 10.1)
    document, told = ran({**BODY, "max_spread_pct": 5}, arms)
    assert (document["repeats"], "".join(document["order"])) == (9, "ABBA" * 4 + "AB")
    assert [(run["label"], run["state"]) for run in told["progress"]] == [(arm, "done") for arm in document["order"]]
    assert document["max_spread_pct"] == 5
    assert document["summary"]["spread"] == {"figure": "itl_p99_ms", "a_pct": 0.99, "b_pct": 0.0, "reached": True}
    assert not has(document["summary"], "WideSpread")
    again = parse_experiment(experiment_of(document))
    assert (again.max_spread_pct, again.repeats) == (5, 9)


def test_repeats_end_and_the_result_says_how_wide_the_spread_still_is() -> None:
    document, _ = ran({**BODY, "repeats": 2, "max_spread_pct": 5}, gaps(lambda repeat: 10.0 + repeat % 2))
    assert (document["repeats"], len(document["runs"])) == (20, 40)
    assert document["summary"]["spread"]["reached"] is False
    assert sentences(document["summary"])[3] == "The spread of ITL p99 was still 9.52\u202f% after 20 repeats."


def test_a_value_of_a_sweep_is_repeated_until_its_spread_is_small() -> None:
    order = itertools.chain([5.0, 5.0], [6.0, 5.0], itertools.repeat(5.0, 2), itertools.cycle([6.0, 5.0]))
    document, told = ran({**SWEEP, "repeats": 2, "max_spread_pct": 10}, in_order("itl_ms", order))
    assert [len(point["runs"]) for point in document["points"]] == [3, 20]
    assert [(run["label"], run["repeat"], run["state"]) for run in told["progress"]] == [
        (f"max batch {value}", number, "done")
        for number, values in ((1, (1, 2)), (2, (2, 1)), (3, (1, 2)), *((number, (2,)) for number in range(4, 21)))
        for value in values
    ]
    assert document["summary"]["spread"] == {"figure": "itl_p99_ms", "reached": False}
    said = "The spread of ITL p99 was still wide after 20 runs at max batch 2 (18.2\u202f%)."
    assert sentences(document["summary"])[-1] == said


def test_a_longer_run_sends_more_of_the_same_requests() -> None:
    document, _ = ran({**BODY, "length": 4})
    assert document["params"]["num_requests"] == 4 * QUICK["num_requests"]
    assert all(len(run["requests"]) == 12 for run in document["runs"])
    assert parse_experiment(experiment_of(document)).scenario.num_requests == 12
    document, _ = ran({**SWEEP, "repeats": 1, "length": 4})
    assert (document["params"]["num_requests"], document["points"][0]["requests"]) == (12, 12)


def test_every_scenario_has_room_for_ten_times_its_requests() -> None:
    for name, scenario in SCENARIOS.items():
        experiment = parse_experiment({"scenario": name, "length": 10})
        assert experiment.scenario.num_requests == 10 * scenario.num_requests
