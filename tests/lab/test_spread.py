"""Repeating runs until the spread is small, and longer runs."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseplay.lab import experiment
from roseplay.lab.document import check_document
from roseplay.lab.flags import parser
from roseplay.lab.from_flags import experiment_body
from roseplay.lab.measures import FIGURES_OF_A_RUN
from roseplay.lab.measuring import run_record
from roseplay.lab.order import parse_experiment
from roseplay.lab.points import is_small, spread_pct
from roseplay.lab.results import experiment_of, parse_result
from roseplay.lab.words import sentences
from roseplay.traffic.scenarios import SCENARIOS
from tests.lab.fake_arms import QUICK, ended, fake_lab
from tests.play.fake_engine import FakeEngine

BODY = {"scenario": "token-budget", "params": QUICK}
SWEEP = {**BODY, "sweep": {"setting": "max_batch_size", "from": 1, "to": 2, "points": 2}}


def ran(body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document of a body, and its job's status at the end."""
    lab = fake_lab(FakeEngine())
    told = ended(lab.start(body))
    document = lab.store.get(told["result"])
    assert document is not None
    return json.loads(json.dumps(document)), told


@pytest.fixture
def itl(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the gaps of all runs of A and B as functions of the repeat, as if they had been measured."""

    def set_them(a: Callable[[int], float], b: Callable[[int], float] = lambda repeat: 5.0) -> None:
        make = {"A": a, "B": b}

        def changed(arm: str, repeat: int, *rest: Any) -> dict[str, Any]:
            return {**run_record(arm, repeat, *rest), "itl_ms": [make[arm](repeat)]}

        monkeypatch.setattr("roseplay.lab.job.run_record", changed)

    return set_them


@given(st.lists(st.floats(1, 100), min_size=1, max_size=20))
def test_a_spread_is_no_wider_than_the_range_and_has_the_median_in_it(values: list[float]) -> None:
    pct = spread_pct(values)
    assert pct is not None
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


def test_both_arms_are_repeated_in_turn_until_the_spread_is_small(itl: Callable[..., None]) -> None:
    itl(lambda repeat: 10.0 if repeat in (1, 2) else 9.0 if repeat == 3 else 10.1)
    document, told = ran({**BODY, "max_spread_pct": 5})
    assert (document["repeats"], "".join(document["order"])) == (9, "ABBA" * 4 + "AB")
    assert [(run["label"], run["state"]) for run in told["progress"]] == [(arm, "done") for arm in document["order"]]
    assert document["max_spread_pct"] == 5
    assert document["summary"]["spread"] == {"figure": "itl_p99_ms", "a_pct": 0.99, "b_pct": 0.0, "reached": True}
    assert len(sentences(document["summary"])) == 3
    again = parse_experiment(experiment_of(document))
    assert (again.max_spread_pct, again.repeats) == (5, 9)
    assert parse_result(json.dumps(document).encode()) == document


def test_repeats_end_and_the_result_says_how_wide_the_spread_still_is(itl: Callable[..., None]) -> None:
    itl(lambda repeat: 10.0 + repeat % 2)
    document, _ = ran({**BODY, "repeats": 2, "max_spread_pct": 5})
    assert (document["repeats"], len(document["runs"])) == (20, 40)
    check_document(document)
    assert document["summary"]["spread"]["reached"] is False
    assert sentences(document["summary"])[3] == "The spread of ITL p99 was still 9.52 % after 20 repeats."


def test_repeats_end_where_a_result_would_hold_too_much(
    itl: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    itl(lambda repeat: 10.0 + repeat % 2)
    monkeypatch.setattr(experiment, "MAX_OUTPUT_TOKENS", 2 * 5 * 3 * 4 + 1)
    document, _ = ran({**BODY, "max_spread_pct": 5})
    assert document["repeats"] == 5


def test_a_value_of_a_sweep_is_repeated_until_its_spread_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = itertools.chain([5.0, 5.0], [6.0, 5.0], itertools.repeat(5.0, 2), itertools.cycle([6.0, 5.0]))

    def figures(*_: Any) -> dict[str, float]:
        return {
            **dict.fromkeys(FIGURES_OF_A_RUN, 1.0),
            "kept_pct": 100.0,
            "prompt_tokens": 64.0,
            "itl_p99_ms": next(gaps),
        }

    monkeypatch.setattr("roseplay.lab.sweep.figures", figures)
    document, told = ran({**SWEEP, "repeats": 2, "max_spread_pct": 10})
    assert [len(point["runs"]) for point in document["points"]] == [3, 20]
    assert [(run["label"], run["repeat"], run["state"]) for run in told["progress"]] == [
        (f"max batch {value}", number, "done")
        for number, values in ((1, (1, 2)), (2, (2, 1)), (3, (1, 2)), *((number, (2,)) for number in range(4, 21)))
        for value in values
    ]
    assert document["summary"]["spread"] == {"figure": "itl_p99_ms", "reached": False}
    said = "The spread of ITL p99 was still wide after 20 runs at max batch 2 (18.2 %)."
    assert sentences(document["summary"])[-1] == said
    assert parse_result(json.dumps(document).encode()) == document


def test_a_longer_run_sends_more_of_the_same_requests() -> None:
    document, _ = ran({**BODY, "length": 4})
    assert document["params"]["num_requests"] == 4 * QUICK["num_requests"]
    assert all(len(run["requests"]) == 12 for run in document["runs"])
    assert parse_experiment(experiment_of(document)).scenario.num_requests == 12
    document, _ = ran({**SWEEP, "repeats": 1, "length": 4})
    assert (document["params"]["num_requests"], document["points"][0]["requests"]) == (12, 12)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_has_room_for_ten_times_its_requests(scenario: str) -> None:
    asked = parse_experiment({"scenario": scenario, "length": 10})
    assert asked.scenario.num_requests == 10 * SCENARIOS[scenario].num_requests


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"length": 10, "params": {"num_requests": 101}},
            "num_requests should be less than or equal to 1000, not 1010",
        ),
        (
            {"find": {"setting": "max_batch_size", "itl_p99_ms": 9, "ttft_p95_ms": 9}, "max_spread_pct": 5},
            "leave out max_",
        ),
        (
            {"length": 4, "sweep": {"setting": "rate_per_s", "from": 1, "to": 2, "seconds": 1}},
            "seconds says how long requests arrive: leave out length",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_sentence(body: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_experiment({"scenario": "poisson", **body})


def test_the_command_line_asks_for_both() -> None:
    body = experiment_body(parser().parse_args(["poisson", "--max-spread", "7.5", "--length", "4"]))
    assert body == {"scenario": "poisson", "max_spread_pct": 7.5, "length": 4}
