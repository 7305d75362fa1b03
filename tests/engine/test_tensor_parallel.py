"""An engine whose model is split over processes returns what one process returns, and leaves none of them behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import transformers as tf

from roseplay import Engine, Knobs, SamplingParams
from roseplay.config import EngineConfig
from roseplay.engine.errors import EngineStartError
from roseplay.model.devices import rank_device
from roseplay.model.errors import UnsupportedModelError
from tests.engine.cases import KNOBS, prompts
from tests.engine.test_engine import LONG
from tests.model.families import FAMILIES, tiny_model
from tests.processes import alive, descendants
from tests.waiting import wait_until

SETTINGS = {"block_size": 4, "num_blocks": 24, "dtype": "float32", "device": "cpu", "threads": 1}
PLAIN = {"pack_weights": False, "fuse_ops": False, "record_steps": False}  # starts faster
CASES = {**KNOBS, "swapped at preemption": {"preemption_mode": "swap", "prefix_cache": False}}
GREEDY = SamplingParams(max_new_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(
    max_new_tokens=12,
    ignore_eos=True,
    temperature=1.5,
    top_k=30,
    top_p=0.95,
    seed=11,
    repetition_penalty=1.2,
    logprobs=2,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("llama")
    tiny_model(FAMILIES["llama"]()).save_pretrained(directory)
    return str(directory)


def say_the_same(alone: Engine, split: Engine, *cases: str) -> None:
    """Compare both engines in these cases; leaves their knobs as they were."""
    for case in cases:
        knobs = CASES[case]
        results = []
        for engine in (alone, split):
            before = engine.knobs
            engine.clear_cache()
            engine.set_knobs(**knobs)
            asked = [(prompt, params) for prompt in prompts() for params in (GREEDY, SAMPLED)]
            streams = [engine.submit(prompt, params) for prompt, params in asked]
            aborted = engine.submit([7] * 9, SamplingParams(max_new_tokens=40, ignore_eos=True))
            engine.abort(aborted.request_id)
            ended = [stream.result(120) for stream in streams]
            ended += [engine.submit(prompts()[-1], GREEDY).result(120) for _ in range(2)]  # the second is cached
            assert aborted.result(120).finish_reason == "abort"
            assert [stream.error for stream in ended] == [None] * len(ended), case
            engine.set_knobs(**{name: getattr(before, name) for name in knobs})
            results.append(ended)
        for one, two in zip(*results, strict=True):
            assert one.token_ids == two.token_ids, case
            for ours, theirs in zip(one.logprobs or [], two.logprobs or [], strict=True):
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        if case == "batched":
            assert sum(stream.metrics.num_preemptions for stream in results[1]) > 0
            assert results[1][-1].metrics.cached_tokens == len(prompts()[-1])


def test_two_processes_say_what_one_does(saved: str) -> None:
    with (
        Engine(saved, worker="thread", **SETTINGS, **PLAIN) as alone,
        Engine(saved, tensor_parallel_size=2, **SETTINGS, **PLAIN) as split,
    ):
        say_the_same(alone, split, "batched", "chunked", "not shared")
        assert (split.info.num_parameters, split.info.weight_bytes) == (
            alone.info.num_parameters,
            alone.info.weight_bytes,
        )
        assert split.info.kv_bytes_per_token == alone.info.kv_bytes_per_token
        chosen = {choice.part: choice for choice in split.info.choices}
        assert chosen["tensor parallel"].chosen == "2 processes, connected by gloo"
        assert split.info.slow == alone.info.slow
        pids = [split.worker_pid, *followers_of(split.worker_pid)]
        assert len(pids) == 2
    wait_until(lambda: not alive(pids))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe", "phi3"])
def test_random_weights_are_those_of_one_process_with_all_kernels(family: str, tmp_path: Path) -> None:
    config = FAMILIES[family]()
    config.initializer_range = 0.3  # otherwise all logits are nearly equal
    config.save_pretrained(tmp_path)
    settings = {**SETTINGS, "random_weights": True, "seed": 5}
    with (
        Engine(str(tmp_path), worker="thread", **settings) as alone,
        Engine(str(tmp_path), tensor_parallel_size=2, **settings) as split,
    ):
        why = {choice.part: choice.why for choice in split.info.choices}
        assert why["steps"] == "tensor parallel steps are not recorded"
        say_the_same(alone, split, *CASES)


@pytest.mark.slow
def test_four_processes_in_bfloat16_answer_from_keys_in_int8(tmp_path: Path) -> None:
    config = tf.LlamaConfig(**{**FAMILIES["llama"]().to_dict(), "num_key_value_heads": 4})
    tiny_model(config).save_pretrained(tmp_path)
    formats = {"dtype": "bfloat16", "kv_dtype": "int8"}
    with Engine(str(tmp_path), tensor_parallel_size=4, **{**SETTINGS, **PLAIN, **formats}) as engine:
        assert engine.info.dtype == "bfloat16"
        assert len(engine.submit([3, 4, 5], GREEDY).result(60).token_ids) == 12


# -- what is refused


@pytest.mark.slow
def test_a_model_that_cannot_be_split_is_refused_at_the_start(tmp_path: Path, saved: str) -> None:
    FAMILIES["gpt2"]().save_pretrained(tmp_path)
    with pytest.raises(EngineStartError, match="transformers has no tensor parallel plan for gpt2; set it to 1"):
        Engine(str(tmp_path), random_weights=True, tensor_parallel_size=2, **SETTINGS)
    with pytest.raises(EngineStartError, match="its 2 key and value heads cannot be divided by 4; set it to 2"):
        Engine(saved, tensor_parallel_size=4, **SETTINGS)


def test_a_model_in_memory_cannot_be_split() -> None:
    with pytest.raises(EngineStartError, match="save it and give its directory"):
        Engine(tiny_model(FAMILIES["llama"]()), tensor_parallel_size=2)


def test_quantization_is_refused() -> None:
    with pytest.raises(EngineStartError, match="quantization q8 needs tensor_parallel_size 1"):
        Engine("tiny-chat", tensor_parallel_size=2, quantization="q8")


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [
        ("cpu", 0, "cpu"),
        ("auto", 0, "cpu"),
        ("auto", 2, "cuda:1"),
        ("cuda", 3, "cuda:1"),
        ("auto", 1, "tensor_parallel_size is 2, but this torch sees 1 GPU: set it to 1 at most, or device to cpu"),
        ("cuda", 0, "device cuda does not exist: this torch sees 0 GPUs; use cpu"),
        ("cuda:1", 4, "device cuda:1 is one GPU; tensor_parallel_size 2 uses the first 2: set device to cuda"),
    ],
)
def test_each_process_has_a_gpu_of_its_own(
    device: str, gpus: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    try:
        found = str(rank_device(EngineConfig(device=device, tensor_parallel_size=2), 1))
    except UnsupportedModelError as refused:
        found = str(refused)
    assert found == expected


# -- processes that end


def followers_of(worker: int) -> list[int]:
    """The processes that a worker has started, except multiprocessing's resource tracker."""
    return [pid for pid, command in descendants(worker).items() if pid != worker and "spawn_main" in command]


@pytest.fixture
def split(saved: str):
    with Engine(saved, tensor_parallel_size=2, step_timeout_s=5, **SETTINGS, **PLAIN) as engine:
        yield engine


def replaced(engine: Engine, worker: int) -> None:
    """Wait for another worker, which must respond."""
    wait_until(lambda: engine.worker_pid != worker and engine.overdue is None, timeout=60)
    assert engine.submit([3], LONG).result(60).finish_reason == "length"
    assert len(followers_of(engine.worker_pid)) == 1


@pytest.mark.slow
def test_a_killed_follower_ends_requests_within_seconds_and_is_replaced(split: Engine) -> None:
    worker = split.worker_pid
    (follower,) = followers_of(worker)
    split.set_knobs(slow_motion=20)
    streams = [split.submit([3 + i], LONG) for i in range(3)]
    wait_until(lambda: streams[0].token_ids)
    killed = time.monotonic()
    os.kill(follower, signal.SIGKILL)
    for stream in streams:
        assert stream.result(10).finish_reason == "error"
    assert time.monotonic() - killed < 8
    assert "the process of rank 1 ended (exit code -9)" in streams[0].error
    split.set_knobs(slow_motion=1)
    replaced(split, worker)
    wait_until(lambda: not alive([worker]))


@pytest.mark.slow
def test_a_follower_that_is_killed_while_nothing_runs_is_replaced(split: Engine) -> None:
    worker = split.worker_pid
    os.kill(*followers_of(worker), signal.SIGKILL)
    replaced(split, worker)


@pytest.mark.slow
def test_a_stopped_follower_counts_as_a_frozen_engine(split: Engine) -> None:
    worker = split.worker_pid
    (follower,) = followers_of(worker)
    stream = split.submit([3], SamplingParams(max_new_tokens=50, ignore_eos=True))
    wait_until(lambda: stream.token_ids)
    os.kill(follower, signal.SIGSTOP)
    try:
        stream.result(30)
        while stream.finish_reason == "length":  # it finished before the signal
            stream = split.submit([3], LONG)
            stream.result(30)
        assert "no sign of life" in stream.error
        replaced(split, worker)
    finally:
        if alive([follower]):
            os.kill(follower, signal.SIGCONT)
    wait_until(lambda: not alive([follower]))


@pytest.mark.slow
def test_a_killed_leader_leaves_no_follower(split: Engine) -> None:
    worker = split.worker_pid
    (follower,) = followers_of(worker)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not alive([follower]))
    replaced(split, worker)


@pytest.mark.slow
def test_no_process_outlives_a_killed_client(saved: str) -> None:
    program = Path(__file__).with_name("orphan.py")
    client = subprocess.Popen(
        [sys.executable, program, saved, "2"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(program.parents[2])},
    )
    worker = int(client.stdout.readline())
    pids = [worker, *followers_of(worker)]
    assert len(pids) == 2
    client.kill()
    client.communicate()
    wait_until(lambda: not alive(pids))


def test_the_worker_of_a_split_model_is_a_process() -> None:
    from roseplay.engine.start import apply_settings

    config, _ = apply_settings(EngineConfig(), Knobs(), {"tensor_parallel_size": 2})
    assert config == dataclasses.replace(EngineConfig(), tensor_parallel_size=2, worker="process")
