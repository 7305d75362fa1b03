"""The lab's engines beside a live one that uses most of the memory, with made-up numbers for the device."""

from __future__ import annotations

import dataclasses
import re
import threading
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.core.block_pool import BlockPool
from roseplay.core.info import FreeMemory
from roseplay.extras.lab.arms import ClosedEngine, arm_configs, sized
from roseplay.extras.lab.lab import Lab
from roseplay.extras.lab.load import Load, PlayedLoad, make_load
from roseplay.extras.lab.measuring import RunTerms, run_record
from roseplay.extras.lab.memory import ANSWER_TOKEN_BYTES, BLOCK_BYTES, PROMPT_TOKEN_BYTES, check_held, need
from roseplay.extras.lab.order import Traffic, parse_experiment
from roseplay.extras.lab.simulated_arm import SimulatedArm
from roseplay.traffic.own_traffic import OWN
from roseplay.traffic.workload import Arrival
from tests.extras.lab.fake_arms import QUICK, MadeUpArms, ended, fake_lab, ran
from tests.play.fake_engine import INFO, FakeEngine

GIB = 2**30
KNOBS_DIFFER = {"scenario": "token-budget", "repeats": 2, "params": QUICK}
CONFIGS_DIFFER = {
    **KNOBS_DIFFER, "a": {"config": {"num_blocks": 50}}, "b": {"config": {"num_blocks": 60}},
}  # fmt: skip
# 8 billion parameters in bfloat16 take 14.9 GiB, on a GPU of 80 GiB whose KV cache was sized automatically.
PARAMETERS, TOKEN_BYTES = 8_000_000_000, 128 * 1024
WEIGHTS, TOTAL = 2 * PARAMETERS, 80 * GIB


def on_a_gpu(engine: FakeEngine, *, utilization: float = 0.9, model: Any = "some/8b", context: int = 8192) -> None:
    """Make it look like an engine on a GPU: weights, 2 GiB for the rest, and a KV cache in what its share leaves."""
    pool = utilization * TOTAL - WEIGHTS - 2 * GIB
    engine.info = dataclasses.replace(
        INFO,
        device="cuda:0",
        dtype="bfloat16",
        num_parameters=PARAMETERS,
        weight_bytes=WEIGHTS,
        kv_bytes_per_token=TOKEN_BYTES,
        num_blocks=int(pool / (16 * TOKEN_BYTES)),
        max_model_len=context,
    )
    engine.model = model
    engine.config = EngineConfig(gpu_memory_utilization=utilization)
    engine.memory = FreeMemory(64 * GIB, round((1 - utilization) * TOTAL), TOTAL)


def run(engine: FakeEngine, body: dict[str, Any]) -> tuple[dict[str, Any], MadeUpArms]:
    arms = MadeUpArms()
    told = ended(fake_lab(engine, arms).start(body))
    assert arms.all_closed
    assert not engine.paused
    return told, arms


def test_arms_that_differ_in_knobs_alone_share_an_engine() -> None:
    budgets: list[int | None] = []
    arms = MadeUpArms(lambda arm: budgets.append(arm.knobs.prefill_max_tokens) or {})
    document, _ = ran({**KNOBS_DIFFER, "b": {"knobs": {"prefill_max_tokens": 2}}}, arms)
    assert len(arms.arms) == 1
    assert [run["arm"] for run in document["runs"]] == ["A", "B", "B", "A"]
    assert [document["arms"][arm]["knobs"]["prefill_max_tokens"] for arm in "AB"] == [None, 2]
    assert budgets == [None, 2, 2, None]


@pytest.mark.parametrize(
    ("gpu", "opened"),
    [
        (None, [50, 60]),
        ({"utilization": 0.7}, [50, 60, 50]),  # 24 GiB are free, an engine needs 17: A, two runs of B, and A again
        ({"model": object()}, [50, 60]),  # in memory, so that it is shared
    ],
)
def test_engines_are_open_together_where_there_is_memory_and_else_in_turn(
    engine: FakeEngine, gpu: dict[str, Any] | None, opened: list[int]
) -> None:
    if gpu is not None:
        on_a_gpu(engine, **gpu)
    told, arms = run(engine, CONFIGS_DIFFER)
    assert (told["state"], told["error"]) == ("done", None)
    assert [run["state"] for run in told["progress"]] == ["done"] * 4
    assert sorted(arm.config.num_blocks for arm in arms.arms) == sorted(opened)
    assert arms.most_open == (1 if len(opened) == 3 else 2)


def test_a_gpu_that_is_full_is_refused_with_the_numbers_and_a_flag_that_helps(engine: FakeEngine) -> None:
    on_a_gpu(engine)
    told, arms = run(engine, KNOBS_DIFFER)
    assert told["state"] == "error"
    assert arms.arms == []
    sentence = told["error"]
    for part in ("14.9 GiB of weights", "2.0 GiB for the rest", "8.0 GiB of cuda:0's memory are free"):
        assert part in sentence
    assert "\n" not in sentence
    flag = re.search(r"--gpu-memory-utilization (\S+)$", sentence)
    share = float(flag[1])
    assert 0.6 < share < 0.9
    on_a_gpu(engine, utilization=share)
    assert run(engine, KNOBS_DIFFER)[0]["state"] == "done"


def test_a_pool_that_somebody_chose_for_the_live_engine_is_told_in_bytes(engine: FakeEngine) -> None:
    on_a_gpu(engine)
    engine.config = EngineConfig(num_blocks=engine.info.num_blocks)
    body = {**KNOBS_DIFFER, "a": {"config": {"num_blocks": 99}}, "b": {"config": {"num_blocks": 99}}}
    told, _ = run(engine, body)
    flag = re.search(r"--kv-cache-memory (\d+): its own KV cache takes (\S+) GiB$", told["error"])
    pool = engine.info.num_blocks * 16 * TOKEN_BYTES
    assert float(flag[2]) == pytest.approx(pool / GIB, abs=0.1)
    given_back = pool - int(flag[1])
    engine.memory = dataclasses.replace(engine.memory, device=(engine.memory.device or 0) + given_back)
    assert run(engine, body)[0]["state"] == "done"


def test_a_model_too_large_to_have_twice_is_refused_without_a_flag(engine: FakeEngine) -> None:
    on_a_gpu(engine, context=131_072)  # a request with the whole context needs 16 GiB
    engine.info.num_blocks = 131_072 // 16 + 1
    told, _ = run(engine, KNOBS_DIFFER)
    assert told["error"].endswith("are free: choose a smaller model, or a device with more memory")


def test_pools_nobody_chose_shrink_to_the_requests_that_run_at_once(engine: FakeEngine) -> None:
    body = {"scenario": "token-budget", "params": {"num_requests": 60, "max_new_tokens": 2}}
    small = {"knobs": {"max_batch_size": 4}}
    on_a_gpu(engine, utilization=0.5)
    _, arms = run(engine, {**body, "a": small, "b": small})
    whole = arms.arms[0].config.num_blocks
    on_a_gpu(engine, utilization=0.77)  # 18.4 GiB are free; weights and the rest need 16.9
    told, arms = run(engine, {**body, "a": small, "b": small})
    assert (told["state"], told["error"]) == ("done", None)
    assert arms.arms[0].config.num_blocks < whole / 3


def test_a_pool_nobody_chose_holds_the_whole_workload_and_two_blocks_to_spare() -> None:
    workload = [Arrival(0.0, [1] * length, SamplingParams(max_new_tokens=16)) for length in (16, 17)]
    config, load = EngineConfig(block_size=16), PlayedLoad(workload, [16, 17])
    assert sized(config, INFO, load).num_blocks == 2 + 3 + 2
    assert sized(config, INFO, load, at_once=1).num_blocks == 3 + 2
    assert sized(config, dataclasses.replace(INFO, num_blocks=6), load).num_blocks == 6


def test_on_a_cpu_the_machine_s_memory_counts(engine: FakeEngine) -> None:
    engine.info = dataclasses.replace(
        INFO, num_parameters=PARAMETERS, dtype="bfloat16", kv_bytes_per_token=TOKEN_BYTES, num_blocks=5000
    )
    engine.memory = FreeMemory(host=12 * GIB)
    told, arms = run(engine, KNOBS_DIFFER)
    assert arms.arms == []
    assert "14.9 GiB of weights" in told["error"]
    assert "12.0 GiB of memory are free: start the page with --kv-cache-memory " in told["error"]
    engine.memory = FreeMemory(host=17 * GIB)
    assert run(engine, KNOBS_DIFFER)[0]["state"] == "done"


def test_an_arm_on_the_cpu_does_not_need_the_gpu_s_memory(engine: FakeEngine) -> None:
    on_a_gpu(engine)
    on_cpu = {"config": {"device": "cpu"}}
    told, _ = run(engine, {**KNOBS_DIFFER, "a": on_cpu, "b": on_cpu})
    assert (told["state"], told["error"]) == ("done", None)
    engine.memory = dataclasses.replace(engine.memory, host=10 * GIB)
    told, _ = run(engine, {**KNOBS_DIFFER, "a": on_cpu, "b": on_cpu})
    assert "10.0 GiB of memory are free" in told["error"]


def test_an_arm_in_another_dtype_has_weights_and_keys_of_its_own_size(engine: FakeEngine) -> None:
    on_a_gpu(engine, utilization=0.7, model=object())
    wide = {"config": {"dtype": "float32"}}
    told, _ = run(engine, {**KNOBS_DIFFER, "a": wide, "b": wide})
    assert "29.8 GiB of weights" in told["error"]


FOUR_MILLION = {
    "scenario": "poisson", "params": {"num_requests": 2},
    "a": {"config": {"num_blocks": 4_000_000}}, "b": {"config": {"num_blocks": 4_000_001}},
}  # fmt: skip
LONG_TEXT = {"num_requests": 1000, "prompt": "é" * 2000}
BATCH = {"setting": "max_batch_size", "from": 1, "to": 2}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (FOUR_MILLION, "this may hold 1.9 GiB of memory: 1.9 GiB for the tables of 8,000,001 KV blocks, and 0.0 GiB for a run of up to 120 prompt tokens and 64 answer tokens; the lab may take 1.0 GiB, a quarter of what is free: lower num_blocks"),
        ({"traffic": {"requests": [[0, 9000, 2]] * 1000}}, "for a run of up to 9,000,000 prompt tokens and 2,000 answer tokens; the lab may take 1.0 GiB, a quarter of what is free: send fewer or shorter requests"),
        ({"traffic": {"requests": [[0, 9, 4096]] * 1000}, "sweep": BATCH}, "and 4,096,000 answer tokens"),
        ({"traffic": {"requests": [[0, "é" * 9000, 2]] * 500}}, "up to 9,000,000 prompt tokens"),
        ({"scenario": "token-budget", "params": LONG_TEXT, "sweep": BATCH}, "prompt tokens and"),
        ({"scenario": "swap", "params": {"num_requests": 1000}, "sweep": {"setting": "prompt_tokens", "from": 9, "to": 20_000}}, "up to 20,000,000 prompt tokens"),
    ],
)  # fmt: skip
def test_what_an_order_will_hold_is_bounded_before_anything_is_made(body: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        check(body)
    assert "\n" not in str(refused.value)


def test_prompts_and_arms_count_once_if_they_are_equal() -> None:
    check({"scenario": "poisson", "params": LONG_TEXT})
    rates = {"setting": "rate_per_s", "from": 1, "to": 32, "points": 32}
    check({"traffic": {"requests": [[second, 2000, 2] for second in range(1000)]}, "sweep": rates})
    for body, blocks in (({"traffic": {"requests": [[0, 9000, 2]] * 526}}, 1000), ({"scenario": "poisson"}, 2_500_000)):
        a, b = ({"config": {"num_blocks": blocks + more}} for more in (0, 1))
        check({**body, "a": a, "b": a})
        with pytest.raises(ValueError, match="this may hold 1.2 GiB of memory"):
            check({**body, "a": a, "b": b})


@cache
def simulated() -> Any:
    return ClosedEngine.of("qwen3-8b", EngineConfig(run_as="h100"))


def check(body: dict[str, Any]) -> None:
    """Check what an order on a simulated H100 would hold, with 4 GiB free."""
    experiment = parse_experiment(body)
    configs = arm_configs(simulated(), experiment.arms)
    check_held(configs, [point.load for point in experiment.points()], simulated().info.max_model_len, 4 * GIB)


def test_an_order_that_would_hold_too_much_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roseplay.extras.lab.job.free_memory", lambda: 4 * GIB)
    with pytest.raises(ValueError, match="lower num_blocks"):
        Lab(simulated()).start(FOUR_MILLION)


def allocated(make: Callable[[], Any]) -> int:
    """The bytes of what ``make`` returns, and of what it left elsewhere."""
    tracemalloc.start()
    try:
        kept = make()
        return tracemalloc.get_traced_memory()[0] if kept else 0
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("prompt", "answer", "most"), [(2000, 1, PROMPT_TOKEN_BYTES), (1, 2000, ANSWER_TOKEN_BYTES)])
def test_the_bytes_counted_for_a_token_are_those_that_a_simulated_run_holds(
    prompt: int, answer: int, most: int
) -> None:
    arm = SimulatedArm("qwen3-8b", EngineConfig(run_as="h100", num_blocks=600), Knobs(max_batch_size=1))
    traffic = Traffic(requests=[[0, prompt, answer]] * 8).parsed(0)

    def run() -> Any:
        workload = make_load(Load(scenario=traffic.of(OWN), traffic=traffic), arm, 4096).workload
        played = arm.run(workload, RunTerms(threading.Event(), time_limit_s=60))
        return workload, played, run_record("A", 1, played)

    run()
    assert most / 3 < allocated(run) / (8 * 2000) <= most


def test_the_bytes_counted_for_a_block_are_those_of_a_pool() -> None:
    blocks = 2**16
    made = allocated(lambda: BlockPool(blocks, 16))
    assert BLOCK_BYTES / 2 < made / blocks <= BLOCK_BYTES


@pytest.mark.parametrize(
    ("device", "place"),
    [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cpu", "cpu"), ("cuda:1", None)],
)
def test_the_memory_that_an_arm_needs_is_its_devices(engine: FakeEngine, device: str, place: str | None) -> None:
    on_a_gpu(engine)
    assert need(engine, EngineConfig(device=device, num_blocks=100)).place == place


def test_keys_and_values_in_int8_need_about_half_the_memory(engine: FakeEngine) -> None:
    on_a_gpu(engine)
    plain, int8 = (need(engine, EngineConfig(num_blocks=100, kv_dtype=kv_dtype)).pool for kv_dtype in ("auto", "int8"))
    assert int8 / plain == pytest.approx(0.53, abs=0.01)
