from __future__ import annotations

import pytest

from roseplay.config import SamplingParams
from roseplay.traffic.arrivals import burst, poisson
from roseplay.traffic.prompts import KINDS, TextPrompts, TokenPrompts
from roseplay.traffic.scenarios import SCENARIOS, Scenario
from roseplay.traffic.workload import make_workload


def build(seed: int):
    return make_workload(
        TokenPrompts(1000, body_tokens=4, seed=seed),
        poisson(20, 10.0, seed=seed),
        mix=KINDS["mix"],
        params=SamplingParams(temperature=0.7),
        seed=seed,
    )


def test_a_workload_is_decided_by_its_seed() -> None:
    assert build(5) == build(5)
    assert build(5) != build(6)


def test_requests_that_sample_have_seeds_of_their_own() -> None:
    workload = make_workload(TextPrompts("x"), burst(3), params=SamplingParams(temperature=1.0), seed=10)
    assert [arrival.params.seed for arrival in workload] == [10, 11, 12]
    given = make_workload(TextPrompts("x"), burst(2), params=SamplingParams(temperature=1.0, seed=4), seed=10)
    assert [arrival.params.seed for arrival in given] == [4, 4]


def test_tags_tell_short_from_long() -> None:
    workload = make_workload(TextPrompts("x"), burst(5), mix=KINDS["mix"])
    assert [arrival.tag for arrival in workload] == ["x1", "x1", "x1", "x64", "x1"]


def test_every_scenario_makes_a_workload_and_two_settings_that_differ() -> None:
    for name, scenario in SCENARIOS.items():
        workload = scenario.workload(TokenPrompts(1000))
        arms = scenario.arms()
        assert scenario.name == name
        assert len(workload) == scenario.num_requests
        assert workload == scenario.workload(TokenPrompts(1000))
        assert arms["before"] != arms["after"]
        assert all(knobs.slow_motion == 1 for knobs in arms.values())
        assert all(arrival.params.ignore_eos for arrival in workload)


def test_the_scenarios_are_the_write_ups_workloads() -> None:
    admission = SCENARIOS["admission"].workload(TokenPrompts(50_257))
    assert (len(admission), sum(len(arrival.prompt) for arrival in admission)) == (32, 128)
    budget = SCENARIOS["token-budget"].workload(TokenPrompts(50_257))
    assert (len(budget), sum(len(arrival.prompt) for arrival in budget)) == (32, 632)
    assert budget[1].at_s == pytest.approx(0.02)
    assert sum(arrival.params.max_new_tokens for arrival in budget) == 1024
    dedup = SCENARIOS["dedup"].workload(TokenPrompts(50_257))
    assert len({tuple(arrival.prompt) for arrival in dedup}) == 1


def test_a_scenario_with_a_wrong_name_in_it_is_refused() -> None:
    with pytest.raises(ValueError, match="no figure"):
        Scenario(name="x", shows="x", watch="speed", mix=KINDS["unique"], before={}, after={})
    with pytest.raises(ValueError, match="unknown knob"):
        Scenario(name="x", shows="x", watch="itl", mix=KINDS["unique"], before={"turbo": True}, after={})
