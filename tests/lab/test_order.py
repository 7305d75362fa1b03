"""What can be requested of the lab, and what is refused with a message."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from roseplay.config import EngineConfig, Knobs
from roseplay.lab.arms import arm_configs
from roseplay.lab.document import ARMS
from roseplay.lab.experiment import Experiment, in_turn
from roseplay.lab.lab import Lab
from roseplay.lab.order import parse_experiment
from roseplay.traffic.scenarios import SCENARIOS
from tests.play.fake_engine import FakeEngine


def parsed(scenario: str = "token-budget", **body: Any) -> Experiment:
    return parse_experiment({"scenario": scenario, **body})


def test_a_scenario_alone_is_an_experiment() -> None:
    for scenario in SCENARIOS.values():
        experiment = parsed(scenario.name)
        assert experiment.scenario == scenario
        assert experiment.arms["A"].knobs == scenario.arms()["before"]
        assert experiment.arms["B"].knobs == scenario.arms()["after"]
        assert experiment.arms["A"].config == scenario.configs()["before"]
        assert (experiment.repeats, experiment.seed) == (1, 0)


def test_an_arm_that_is_given_is_the_whole_truth() -> None:
    experiment = parsed("kv-pressure", b={"knobs": {"max_batch_size": 3}, "config": {"num_blocks": 40}})
    assert experiment.arms["B"].knobs == Knobs(max_batch_size=3)
    assert experiment.arms["B"].config == {"num_blocks": 40}
    assert experiment.arms["A"].config["num_blocks"] == 65


def test_arms_take_turns_so_that_drift_meets_both() -> None:
    assert "".join(arm for repeat in range(3) for arm in in_turn(ARMS, repeat)) == "ABBAAB"


def test_parameters_change_the_traffic() -> None:
    scenario = parsed("poisson", params={"num_requests": 5, "rate_per_s": 3, "max_new_tokens": 2}).scenario
    assert (scenario.num_requests, scenario.rate_per_s, scenario.max_new_tokens) == (5, 3.0, 2)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "JSON object"),
        ({}, "no scenario None: use one of admission"),
        ({"scenario": "magic"}, "no scenario 'magic'"),
        ({"scenario": ["dedup"]}, "scenario should be a valid string"),
        ({"scenario": "dedup", "speed": 1}, "speed is not known: use scenario, traffic, seed"),
        ({"scenario": "dedup", "seed": -1}, "seed should be greater than or equal to 0, not -1"),
        ({"scenario": "dedup", "seed": float("nan")}, "seed should be"),
        ({"scenario": "dedup", "repeats": 0}, "repeats should be greater than or equal to 1, not 0"),
        ({"scenario": "dedup", "repeats": 1.5}, "repeats should be a valid integer"),
        ({"scenario": "dedup", "name": "x" * 99}, "name"),
        ({"scenario": "dedup", "params": 5}, "params must be a JSON object"),
        ({"scenario": "dedup", "params": {"rate_per_s": 5}}, "no parameter rate_per_s"),
        ({"scenario": "dedup", "params": {"num_requests": 1e9}}, "num_requests"),
        ({"scenario": "dedup", "params": {"num_requests": 256, "max_new_tokens": 512}}, "262,144 tokens"),
        ({"scenario": "dedup", "limits": {"ttft_ms": 0}}, "limits, ttft_ms should be greater than 0"),
        ({"scenario": "dedup", "limits": {"tpot_ms": 1}}, "limits: tpot_ms is not known: use ttft_ms, itl_ms"),
        ({"scenario": "dedup", "a": []}, "a must be a JSON object"),
        ({"scenario": "dedup", "a": {"knob": {}}}, "a: knob is not known: use knobs, config"),
        ({"scenario": "dedup", "b": {"knobs": {"turbo": 1}}}, "arm B: unknown knob turbo"),
        ({"scenario": "dedup", "b": {"knobs": {"max_batch_size": 0}}}, "arm B: max_batch_size is 0"),
        ({"scenario": "dedup", "b": {"knobs": {"slow_motion": 2}}}, "slow motion"),
        ({"scenario": "dedup", "b": {"config": {"num_blocks": 1}}}, "arm B: num_blocks is 1"),
        ({"scenario": "dedup", "b": {"config": {"device": 5}}}, "arm B: device is 5: use one of auto"),
        ({"scenario": "dedup", "b": {"config": {"worker": "thread"}}}, "cannot have worker"),
        ({"scenario": "dedup", "b": {"config": {"num_blocks": 9, "kv_cache_memory": 9}}}, "not both"),
    ],
)
def test_a_bad_experiment_is_refused_with_a_sentence(body: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        parse_experiment(body)
    assert "\n" not in str(caught.value)


def test_arms_are_made_like_the_live_engine() -> None:
    live = FakeEngine()
    live.config = EngineConfig(dtype="float32", kv_cache_memory=10**6, threads=2, worker="thread")
    configs = arm_configs(live, parsed("kv-pressure").arms)
    assert {arm: config.num_blocks for arm, config in configs.items()} == {"A": 65, "B": 257}
    assert all(config.kv_cache_memory is None and config.threads == 2 for config in configs.values())
    assert all(config.worker == "process" for config in configs.values())
    assert arm_configs(live, parsed().arms)["A"].kv_cache_memory == 10**6
    live.model = object()  # in memory, so that no other process can have it
    assert arm_configs(live, parsed().arms)["A"] == dataclasses.replace(live.config, worker="thread")


def test_a_knob_that_the_device_does_not_have_is_refused() -> None:
    arm = {"knobs": {"cuda_graphs": False}}
    with pytest.raises(ValueError, match="arm B: cuda_graphs needs a CUDA device"):
        arm_configs(FakeEngine(), parsed(b=arm).arms)
    assert arm_configs(FakeEngine(), parsed(b={**arm, "config": {"device": "cuda"}}).arms)["B"].device == "cuda"
    simulated = FakeEngine()
    simulated.config = EngineConfig(run_as="h100")
    assert arm_configs(simulated, parsed(b=arm).arms)["B"].run_as == "h100"


def test_arms_read_no_files_but_the_engines_own_calibration() -> None:
    """The experiment of a page's visitor may not name files of this machine."""
    simulated, arm = FakeEngine(), {"config": {"run_as": "mine.json"}}
    simulated.config = EngineConfig(run_as="h100")
    with pytest.raises(ValueError, match="arm B: start with --run-as mine.json"):
        arm_configs(simulated, parsed(b=arm).arms)
    simulated.config = EngineConfig(run_as="mine.json")
    assert arm_configs(simulated, parsed(b=arm).arms)["B"].run_as == "mine.json"


def test_the_page_is_told_what_may_be_asked_of_a_short_model() -> None:
    live = FakeEngine()
    live.info = dataclasses.replace(live.info, max_model_len=64)
    told = {one["name"]: one["params"] for one in Lab(live).describe()["scenarios"]}
    for params in told.values():
        assert (params["max_new_tokens"]["min"], params["max_new_tokens"]["max"]) == (1, 32)
        assert 1 <= params["max_new_tokens"]["default"] <= 32
        assert params["num_requests"]["max"] > 64
