"""What can be requested of the lab, and what is refused with a message."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from roseplay.config import EngineConfig, Knobs
from roseplay.extras.lab.arms import arm_configs
from roseplay.extras.lab.experiment import Experiment
from roseplay.extras.lab.lab import Lab
from roseplay.extras.lab.order import parse_experiment
from roseplay.traffic.scenario import MAX_RATE_PER_S
from tests.play.fake_engine import FakeEngine


def parsed(scenario: str = "token-budget", **body: Any) -> Experiment:
    return parse_experiment({"scenario": scenario, **body})


def test_an_arm_that_is_given_is_the_whole_truth() -> None:
    experiment = parsed("kv-pressure", b={"knobs": {"max_batch_size": 3}, "config": {"num_blocks": 40}})
    assert experiment.arms["B"].knobs == Knobs(max_batch_size=3)
    assert experiment.arms["B"].config == {"num_blocks": 40}
    assert experiment.arms["A"].config["num_blocks"] == 65


TEXT = "arrival_s,prompt_tokens,answer_tokens\n0,4,2\n"
ROWS = [[10.0, "Hi", 5]]


def sweep(setting: str = "max_batch_size", **more: Any) -> dict[str, Any]:
    """An order of a sweep from 1 to 5, unless ``more`` says otherwise."""
    return {"sweep": {"setting": setting, "from": 1, "to": 5, **more}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "JSON object"),
        ({"scenario": None}, "no scenario None: use one of token-budget"),
        ({"scenario": "magic"}, "no scenario 'magic'"),
        ({"scenario": ["dedup"]}, "scenario should be a valid string"),
        ({"speed": 1}, "speed is not known: use scenario, traffic, seed"),
        ({"seed": -1}, "seed should be greater than or equal to 0, not -1"),
        ({"seed": float("nan")}, "seed should be"),
        ({"seed": 2**31}, "seed should be"),
        ({"repeats": 0}, "repeats should be greater than or equal to 1, not 0"),
        ({"repeats": 1.5}, "repeats should be a valid integer"),
        ({"name": "x" * 81}, "name"),
        ({"name": 5}, "name"),
        *(({"length": length}, "length") for length in (2, True, "4")),
        *(({"max_spread_pct": pct}, "max_spread_pct") for pct in (0.09, 101)),
        ({"params": 5}, "params must be a JSON object"),
        ({"params": {"rate_per_s": 5}}, "no parameter rate_per_s"),
        ({"params": {"num_requests": 1e9}}, "num_requests"),
        ({"params": {"num_requests": 256, "max_new_tokens": 512}}, "262,144 tokens"),
        ({"params": {"num_requests": 101}, "length": 10}, "less than or equal to 1000, not 1010"),
        ({"limits": {"ttft_ms": 0}}, "limits, ttft_ms should be greater than 0"),
        *(({"limits": {name: value}}, name) for name, value in (("ttft_ms", 1.1e6), ("itl_ms", True), ("itl_ms", "1"))),
        ({"limits": {"tpot_ms": 1}}, "limits: tpot_ms is not known: use ttft_ms, itl_ms"),
        ({"a": []}, "a must be a JSON object"),
        ({"a": {"knob": {}}}, "a: knob is not known: use knobs, config"),
        ({"b": {"knobs": {"turbo": 1}}}, "arm B: unknown knob turbo"),
        ({"b": {"knobs": {"max_batch_size": 0}}}, "arm B: max_batch_size is 0"),
        ({"b": {"knobs": {"slow_motion": 2}}}, "slow motion"),
        ({"b": {"config": {"num_blocks": 1}}}, "arm B: num_blocks is 1"),
        ({"b": {"config": {"num_blocks": 2_000_000_000}}}, "arm B: num_blocks is 2000000000"),
        ({"b": {"config": {"device": 5}}}, "arm B: device is 5: use one of auto"),
        ({"b": {"config": {"worker": "thread"}}}, "cannot have worker"),
        ({"b": {"config": {"url": 7}}}, "the url of arm B must be text"),
        ({"b": {"config": {"num_blocks": 9, "kv_cache_memory": 9}}}, "not both"),
        ({"sweep": []}, "sweep must be a JSON object"),
        ({"sweep": {}}, "sweep, setting is missing"),
        ({"sweep": {"setting": "max_batch_size", "from": 1}}, "only a sweep of the rate ends by itself"),
        ({"sweep": {"setting": "rate_per_s", "from": 1, "points": 3}}, "only a sweep of the rate ends by itself"),
        (sweep("seed"), "sweep, setting should be"),
        (sweep(colour=1), "sweep: colour is not known: use setting"),
        (sweep(**{"from": 1.5}), "from is 1.5: use a whole number"),
        (sweep("prompt_tokens", to=99.5), "to is 99.5: use a whole number"),
        (sweep(to=1), "the last must be larger than the first"),
        (sweep(points=1), "sweep, points should be"),
        (sweep(points=33), "sweep, points should be"),
        (sweep("rate_per_s", to=500, seconds=10), "choose a lower rate or fewer seconds"),
        (sweep("rate_per_s", seconds=1) | {"length": 4}, "seconds says how long requests arrive: leave out length"),
        (sweep() | {"b": {"knobs": {"max_batch_size": 3}}}, "max_batch_size in both arms"),
        (sweep("prompt_tokens") | {"traffic": {"requests": ROWS}}, "prompt_tokens is for a scenario"),
        (
            {"find": {"setting": "max_batch_size", "itl_p99_ms": 9, "ttft_p95_ms": 9}, "max_spread_pct": 5},
            "leave out max_",
        ),
        ({"traffic": []}, "traffic must be a JSON object"),
        ({"traffic": {1: 2}}, "traffic"),
        ({"traffic": {"file": "x"}}, "traffic: file is not known: use name, text, requests, rate_per_s"),
        ({"traffic": {"text": TEXT, "name": "x" * 81}}, "traffic, name"),
        ({"traffic": {"text": TEXT, "name": 5}}, "traffic, name"),
        ({"traffic": {"text": 5}}, "traffic, text"),
        ({"traffic": {}}, "either the text of a file, or requests"),
        ({"traffic": {"text": TEXT, "requests": ROWS}}, "either the text of a file, or requests"),
        ({"traffic": {"text": TEXT, "rate_per_s": 0.05}}, "rate_per_s"),
        ({"traffic": {"text": TEXT, "rate_per_s": MAX_RATE_PER_S + 1}}, "rate_per_s"),
        ({"traffic": {"requests": ROWS, "rate_per_s": 2}}, "requests have arrivals"),
        ({"traffic": {"requests": []}}, "a list of 1 to"),
        ({"traffic": {"requests": ROWS}, "length": 4}, "length is for a scenario"),
        ({"traffic": {"requests": ROWS}, "params": {"num_requests": 3}}, "traffic of your own has no num_requests"),
    ],
)
def test_a_bad_experiment_is_refused_with_a_sentence(body: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        parse_experiment({"scenario": "dedup", **body} if isinstance(body, dict) else body)
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
