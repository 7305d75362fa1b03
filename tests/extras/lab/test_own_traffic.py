"""The user's own traffic in an experiment: what is accepted, and what is refused with a message."""

from __future__ import annotations

import random
from typing import Any

import pytest

from roseplay.config import SamplingParams
from roseplay.extras.lab.document import traffic_rows
from roseplay.extras.lab.load import Load, PlayedLoad, warm_up
from roseplay.extras.lab.order import Traffic, parse_experiment
from roseplay.formats.invalid import validated
from roseplay.traffic.own import OwnRequest
from roseplay.traffic.own_traffic import OWN, OwnTraffic
from roseplay.traffic.scenario import MAX_RATE_PER_S
from roseplay.traffic.scenarios import SCENARIOS
from roseplay.traffic.workload import Arrival


def parse_own_traffic(given: Any, seed: int) -> OwnTraffic:
    return validated(Traffic, given, "traffic").parsed(seed)


ROWS = [[10.0, "Hi", 5], [12.5, 7, 9], [11.0, 7, 3]]
PARSED = (OwnRequest(0.0, "Hi", 5), OwnRequest(1.0, 7, 3), OwnRequest(2.5, 7, 9))
TEXT = "arrival_s,prompt_tokens,answer_tokens\n0,4,2\n1,4,2\n3,4,2\n"


def test_requests_of_a_result_are_read_as_they_are_written() -> None:
    traffic = parse_own_traffic({"name": "x" * 80, "requests": ROWS}, 0)
    assert traffic == OwnTraffic("x" * 80, PARSED)
    assert parse_own_traffic(traffic_rows(traffic), 3) == traffic
    assert Load(scenario=traffic.of(OWN), traffic=traffic).answer_tokens == 17
    assert traffic.figures() == {"name": "x" * 80, "requests": 3, "span_s": 2.5}
    assert [request.arrival_s for request in traffic.at_rate(4.0).requests] == pytest.approx([0, 0.2, 0.5])


@pytest.mark.parametrize("seed", range(20))
def test_a_warm_up_is_a_few_short_answers_to_prompts_of_the_workload_with_the_longest(seed: int) -> None:
    draw = random.Random(seed)
    workload = [
        Arrival(float(n), f"{n}", SamplingParams(structured_outputs=draw.choice([None, '{"regex": "a"}'])))
        for n in range(draw.randint(1, 20))
    ]
    lengths = [draw.randint(1, 9) for _ in workload]
    few = warm_up(PlayedLoad(workload, lengths))
    places = [int(str(arrival.prompt)) for arrival in few]
    assert len({*places}) == len(few) == min(8, len(workload))
    assert max(lengths[place] for place in places) == max(lengths)
    for place, arrival in zip(places, few, strict=True):
        structure = workload[place].params.structured_outputs
        assert (arrival.at_s, arrival.params) == (
            0.0,
            SamplingParams(max_new_tokens=4, ignore_eos=True, structured_outputs=structure),
        )


def test_a_text_may_have_its_rate() -> None:
    assert [request.arrival_s for request in parse_own_traffic({"text": TEXT}, 0).requests] == [0, 1, 3]
    fast, other = (parse_own_traffic({"text": TEXT, "rate_per_s": MAX_RATE_PER_S}, seed) for seed in (1, 2))
    assert fast.requests[-1].arrival_s < 1
    assert fast != other
    assert fast == parse_own_traffic({"text": TEXT, "rate_per_s": MAX_RATE_PER_S}, 1)
    assert parse_own_traffic({"text": TEXT, "rate_per_s": 0.1}, 1).requests[-1].arrival_s > 3


def test_it_takes_the_place_of_a_scenarios_requests() -> None:
    traffic = {"name": "mine.csv", "requests": ROWS}
    experiment = parse_experiment({"traffic": traffic})
    scenario = experiment.scenario
    assert (scenario.name, scenario.title, scenario.num_requests) == (OWN.name, "Own traffic: mine.csv", 3)
    assert (scenario.max_new_tokens, scenario.arrivals, scenario.rate_per_s) == (9, "burst", None)
    named = parse_experiment({"traffic": {**traffic, "name": ""}, "scenario": "poisson"})
    assert named.scenario.title == f"{SCENARIOS['poisson'].title}, own traffic"
    assert named.scenario.rate_per_s is None and named.scenario.prompt is None
    assert named.arms["B"].knobs == SCENARIOS["poisson"].arms()["after"]
    assert parse_experiment({"traffic": traffic, "scenario": OWN.name}).traffic == OwnTraffic("mine.csv", PARSED)


def test_as_many_tokens_as_a_result_holds_may_be_asked_for() -> None:
    rows = [[0, 1, 4000]] * 5
    assert parse_experiment({"repeats": 5, "traffic": {"requests": rows}}).repeats == 5
    with pytest.raises(ValueError, match="at most 200,000"):
        parse_experiment({"repeats": 5, "traffic": {"requests": [*rows, [0, 1, 1]]}})
    spread = parse_experiment({"max_spread_pct": 5, "repeats": 2, "traffic": {"requests": rows[:1]}})
    assert (spread.max_spread_pct, spread.most_repeats) == (5, 20)
    assert parse_experiment({"max_spread_pct": 0.1, "traffic": {"requests": rows}}).most_repeats == 5
    assert parse_experiment({"repeats": 3, "traffic": {"requests": rows}}).most_repeats == 3


def test_the_largest_and_the_least_of_a_field_are_taken() -> None:
    for field, values in {
        "length": (1, 4, 10, None),
        "max_spread_pct": (0.1, 100, None),
        "seed": (0, 2**31 - 1, None),
        "name": ("x" * 80, "", None),
        "limits": ({"ttft_ms": 1e6}, {"itl_ms": 0.1}, None),
    }.items():
        for value in values:
            parse_experiment({"scenario": "dedup", field: value})


def test_length_and_limits_are_taken_over() -> None:
    plain = parse_experiment({"scenario": "dedup"})
    longer = parse_experiment({"scenario": "dedup", "length": 4, "limits": {"itl_ms": 7}, "name": "n"})
    assert longer.scenario.num_requests == 4 * plain.scenario.num_requests
    assert plain.limits == {"ttft_ms": 500.0, "itl_ms": 50.0}
    assert longer.limits == {"ttft_ms": 500.0, "itl_ms": 7.0}
    assert (plain.name, longer.name, parse_experiment({"scenario": "dedup", "name": ""}).name) == (None, "n", None)


def test_seconds_give_each_value_of_a_sweep_its_requests() -> None:
    def requests(setting: str, first: float, last: float, **more: Any) -> list[tuple[int, float | None]]:
        varied = {"setting": setting, "from": first, "to": last, "points": 2, **more}
        found = parse_experiment({"scenario": "poisson", "params": {"rate_per_s": 8}, "sweep": varied}).loads()  # type: ignore[attr-defined]
        return [(question.scenario.num_requests, question.scenario.rate_per_s) for question in found.values()]

    assert requests("max_batch_size", 1, 8, seconds=3) == [(24, 8.0)] * 2
    assert requests("rate_per_s", 2, 6, seconds=3) == [(6, 2.0), (18, 6.0)]
    plain = SCENARIOS["poisson"].num_requests
    assert requests("rate_per_s", 2, 6) == [(plain, 2.0), (plain, 6.0)]
    assert requests("max_batch_size", 1, 8) == [(plain, 8.0)] * 2
