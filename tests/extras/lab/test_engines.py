"""The lab with real engines: the same seed gives the same work, and no process is left behind."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from roseplay import Engine, SamplingParams
from roseplay.config import EngineConfig, Knobs
from roseplay.extras.lab.arms import OpenArm, open_engine
from roseplay.extras.lab.job import Job
from roseplay.extras.lab.lab import Lab
from roseplay.extras.lab.load import PlayedLoad, warm_up
from roseplay.extras.lab.order import parse_experiment
from roseplay.extras.lab.words import sentences
from roseplay.model.source import embedded_model
from roseplay.traffic.prompts import TextPrompts
from roseplay.traffic.scenarios import SCENARIOS
from tests.extras.lab.fake_arms import ended
from tests.model.families import FAMILIES, tiny_model
from tests.waiting import wait_until

FEW = {"num_requests": 6, "max_new_tokens": 8}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(FAMILIES["llama"]())


@pytest.fixture(scope="module")
def live(model: Any) -> Iterator[Engine]:
    """A model in memory with 97 tokens and a context of 64, so that its arms run in threads."""
    with Engine(model, block_size=4, num_blocks=200) as engine:
        yield engine


@pytest.fixture(scope="module")
def live_of_files(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A model in files, so that its arms run in processes."""
    directory = tmp_path_factory.mktemp("model")
    model.save_pretrained(directory)
    with Engine(str(directory), block_size=4, num_blocks=200, worker="thread") as engine:
        yield engine


def played(lab: Lab, **body: Any) -> dict[str, Any]:
    told = ended(lab.start(body), 120)
    assert (told["state"], told["error"]) == ("done", None)
    document = lab.store.get(told["result"])
    return document


def test_times_can_be_cpu_time_and_waiting_then_takes_none(live: Engine) -> None:
    """Requests that are due 10 s apart: while nothing is computed, the clock does not wait (two minutes in all)."""
    params = {"num_requests": 8, "max_new_tokens": 4, "rate_per_s": 0.1}
    kept: list[dict[str, Any]] = []
    experiment = parse_experiment({"scenario": "speculation", "params": params})
    job = Job(experiment, live, lambda document: kept.append(document) or document["id"], cpu_time=True)
    job.start()
    assert (ended(job)["error"], len(kept)) == (None, 1)
    for run in kept[0]["runs"]:
        due = [request["intended_arrival_ms"] for request in run["requests"]]
        assert [round(at_ms / 1000) for at_ms in due] == list(range(0, 80, 10))
        assert run["seconds"] > 69
    assert sentences(kept[0]["summary"])[-1].startswith("Times are CPU time of the engine's process")


def traffic(run: dict[str, Any]) -> list[int]:
    return [request["prompt_tokens"] for request in run["requests"]]


@pytest.mark.parametrize("name", ["batched-append", "dedup", "long-context", "speculation", "swap", "token-budget"])
def test_settings_that_change_how_steps_are_computed_do_not_change_the_work(live: Engine, name: str) -> None:
    params = {**FEW, **({"rate_per_s": 200.0} if SCENARIOS[name].rate_per_s else {})}
    document = played(Lab(live), scenario=name, seed=1, params=params)
    a, b = document["runs"]
    assert a["tokens_sha256"] == b["tokens_sha256"]
    assert document["summary"]["same_tokens"]
    assert traffic(a) == traffic(b)
    for run in (a, b):
        assert all(request["completion_tokens"] == 8 for request in run["requests"])
        computed = sum(step[2] for step in run["steps"])
        if not run["preemptions"]:
            assert computed + run["saved_tokens"] == sum(traffic(run))


def test_the_lab_measures_masks_of_structured_outputs() -> None:
    """A model in memory, so that its arms run in threads; its tokenizer is found by its path."""
    with Engine(AutoModelForCausalLM.from_pretrained(embedded_model())) as live:
        document = played(Lab(live), scenario="structured-output", params={"num_requests": 4, "max_new_tokens": 8})
    a, b = document["runs"]
    assert a["tokens_sha256"] == b["tokens_sha256"]
    assert a["mask_wait_ms"] > a["mask_ms"] / 2 > 0, "computed before the model"
    assert b["mask_wait_ms"] > 0
    rows = {row["name"]: row for row in document["summary"]["metrics"]}
    assert {"mask_ms", "mask_wait_ms"} <= rows.keys()
    workload = SCENARIOS["structured-output"].workload(TextPrompts("Hi"))
    structures = [
        arrival.params.structured_outputs is not None for arrival in warm_up(PlayedLoad(workload, [9, 2, *[1] * 14]))
    ]
    assert structures[:2] == [True, False], "compiled before anything is measured"


def test_an_engine_knows_what_memory_is_free_beside_it(live: Engine) -> None:
    free = live.free_memory()
    assert 2**20 < free.host < 2**50
    assert (free.device is None) == (live.info.device == "cpu")


def test_each_run_starts_cold_and_is_the_same_work_unless_the_seed_is_another(live: Engine) -> None:
    first, again, other = (played(Lab(live), scenario="dedup", seed=seed, repeats=2, params=FEW) for seed in (1, 1, 2))
    runs = first["runs"]
    shared = [run for run in runs if run["arm"] == "B"]
    assert shared[0]["saved_tokens"] == 5 * traffic(shared[0])[0]  # all but the first request, as nothing is cached
    assert shared[0]["saved_tokens"] == shared[1]["saved_tokens"]
    assert all(run["saved_tokens"] == 0 for run in runs if run["arm"] == "A")
    works = [{run["tokens_sha256"] for run in document["runs"]} for document in (first, again, other)]
    assert [len(work) for work in works] == [1, 1, 1]
    assert works[0] == works[1] != works[2]


def test_arms_may_differ_in_their_engines_which_report_how_they_compute(live: Engine) -> None:
    opened: list[tuple[str, str]] = []

    def noted(model: Any, config: EngineConfig, knobs: Knobs, cancelled: threading.Event) -> OpenArm:
        arm = open_engine(model, config, knobs, cancelled)
        opened.append((config.attention, arm.info.attention))
        return arm

    configs = {
        "a": {"block_size": 4, "num_blocks": 24, "attention": "reference", "pack_weights": False},
        "b": {"block_size": 8, "num_blocks": 200, "attention": "gather", "pack_weights": True},
    }
    arms = {arm: {"config": config} for arm, config in configs.items()}
    params = {"num_requests": 6, "max_new_tokens": 24}
    document = played(Lab(live, open_engine=noted), scenario="kv-pressure", params=params, **arms)
    assert sorted(opened) == [("gather", "gather"), ("reference", "reference")]
    for arm, config in configs.items():
        assert document["arms"][arm.upper()]["config"].items() >= config.items()
    assert {*document["arms"]["A"]["differs"]} == {*configs["a"]}
    preempted = {run["arm"]: run["preemptions"] for run in document["runs"]}
    assert preempted["A"] > 0
    assert preempted["B"] == 0
    assert document["summary"]["same_tokens"]


def test_the_live_engine_stands_still_and_goes_on(live: Engine) -> None:
    live.set_knobs(slow_motion=20)
    stream = live.submit([3, 4, 5], SamplingParams(max_new_tokens=40, ignore_eos=True))
    wait_until(lambda: len(stream.token_ids) > 2)
    started = time.perf_counter_ns()
    played(Lab(live), scenario="dedup", params=FEW)
    took = time.perf_counter_ns() - started
    live.set_knobs(slow_motion=1)
    assert stream.result(30).finish_reason == "length"
    during = [t for t in stream.token_times_ns if started <= t <= started + took]
    assert len(during) <= 3  # from the step in flight, and after the engine had resumed
    assert max(stream.metrics.itl_ns) > took / 2


def test_a_request_that_an_arm_cannot_take_is_an_error(live: Engine) -> None:
    told = ended(Lab(live).start({"scenario": "dedup", "params": FEW, "b": {"config": {"max_waiting": 1}}}))
    assert told["state"] == "error"
    assert told["error"].startswith("arm B, warm-up: ")
    assert "refused: 1 requests are already waiting" in told["error"]
    assert not live.paused


def test_processes_are_gone_when_it_is_stopped(live_of_files: Engine) -> None:
    lab = Lab(live_of_files)
    job = lab.start({"scenario": "poisson", "params": {"num_requests": 200, "max_new_tokens": 8, "rate_per_s": 2}})
    wait_until(lambda: job.status()["progress"][0]["done"] > 0, timeout=120)
    lab.stop()
    assert ended(job, 30)["state"] == "stopped"
    assert multiprocessing.active_children() == []
    assert live_of_files.submit([3], SamplingParams(max_new_tokens=2)).result(30).finish_reason == "length"


@pytest.mark.slow
@pytest.mark.parametrize("stops", [False, True])
def test_processes_are_gone_when_it_is_done_or_stopped_while_it_starts(live_of_files: Engine, stops: bool) -> None:
    lab = Lab(live_of_files)
    job = lab.start({"scenario": "token-budget", "params": {**FEW, "rate_per_s": 200.0}})
    wait_until(multiprocessing.active_children)
    if stops:
        lab.stop()
    assert ended(job, 120)["state"] == ("stopped" if stops else "done")
    assert multiprocessing.active_children() == []
    assert not live_of_files.paused
