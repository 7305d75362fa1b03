"""Replicas give the same answers as one engine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from roseplay.config import EngineConfig, SamplingParams
from roseplay.engine.client import Engine
from roseplay.engine.start import open_tokenizer
from roseplay.extras.ray.deployment_settings import RaySettings
from roseplay.extras.ray.engine import RayEngine
from tests.extras.ray.suite.conftest import KNOBS, MODEL
from tests.waiting import wait_until

pytest.importorskip("roseplay.extras.ray.environment", reason="Ray is not installed", exc_type=ImportError)
pytestmark = pytest.mark.slow

PROMPTS = [f"Tell me about {topic}." for topic in "TTFT paging batching a_fox prefill the_cache decoding Paris".split()]


def test_answers_equal_one_engines(engine: Any) -> None:
    params = SamplingParams(max_new_tokens=40, stop="\n\n", logprobs=1, prompt_logprobs=0)
    streams = [engine.submit([{"role": "user", "content": prompt}], params) for prompt in PROMPTS]
    with Engine(MODEL, worker="thread", threads=1, num_blocks=200, knobs=KNOBS) as alone:
        expected = [alone.submit([{"role": "user", "content": prompt}], params) for prompt in PROMPTS]
        for stream, other in zip(streams, expected, strict=True):
            stream.result(60), other.result(60)
            assert (stream.text, stream.token_ids) == (other.text, other.token_ids)
            assert (stream.finish_reason, stream.error) == (other.finish_reason, None)
            assert stream.text_ends == other.text_ends
            assert len(stream.logprobs) == len(stream.token_ids) == len(stream.token_times_ns)
            assert len(stream.prompt_logprobs) == len(stream.prompt_token_ids)
            metrics = stream.metrics
            assert 0 <= metrics.queue_s <= metrics.ttft_s <= metrics.e2e_s
            assert metrics.completion_tokens == len(stream.token_ids) == len(metrics.itl_ns) + 1


def test_a_stream_of_the_api(address: str) -> None:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 60, "stream": True, "ignore_eos": True}
    body["stream_options"] = {"include_usage": True}
    with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as reply:
        events = [line for line in reply.iter_lines() if line.startswith("data: ")]
    assert len(events) > 4 and events[-1] == "data: [DONE]"
    assert '"completion_tokens":60' in events[-2].replace(" ", "")


def test_a_client_that_leaves_ends_its_request(address: str, engine: Any) -> None:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 1800, "stream": True, "ignore_eos": True}
    engine.set_knobs(slow_motion=20.0)  # so that it would take a minute
    try:
        with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as reply:
            lines = reply.iter_lines()  # keep a reference: without its iterator, httpx closes the connection
            assert " upon" in next(lines) and engine.num_unfinished == 1
        wait_until(lambda: not engine.num_unfinished, timeout=5)
        wait_until(lambda: figure(address, 'request_success_total{engine="E",finished_reason="abort"'), timeout=5)
    finally:
        engine.set_knobs(slow_motion=1.0)


def test_figures_of_both_replicas(address: str, engine: Any) -> None:
    for stream in [engine.submit(prompt, SamplingParams(max_new_tokens=4)) for prompt in PROMPTS]:
        stream.result(60)
    text = httpx.get(f"{address}/metrics", timeout=10).text
    assert text.count("# TYPE vllm:generation_tokens_total counter\n") == 1
    for rank in "01":
        assert figure(address, f'generation_tokens_total{{engine="{rank}"') > 0
    assert text.count("process_cpu_seconds_total ") >= 1
    listed = httpx.get(f"{address}/v1/replicas", timeout=10).json()["data"]
    assert [replica["engine"] for replica in listed] == ["0", "1"]
    for replica in listed:
        label = f'{{engine="{replica["engine"]}"'
        assert replica["generated_tokens"] == figure(address, f"generation_tokens_total{label}") > 0
        assert replica["cached_tokens"] == figure(address, f"prefix_cache_hits_total{label}")
        assert replica["hit_rate"] == replica["cached_tokens"] / replica["prompt_tokens"]
        assert (replica["running"], replica["waiting"], replica["kv_usage"]) == (0, 0, 0.0)
        assert 0 < replica["cached_blocks"] <= replica["num_blocks"] == 199
    assert httpx.get(f"{address}/health", timeout=10).status_code == 200


def figure(address: str, sample: str) -> float:
    """The sum of a family's samples that begin with ``sample``; ``engine="E"`` matches any engine."""
    beginnings = tuple("vllm:" + sample.replace('"E"', f'"{rank}"') for rank in "01")
    lines = httpx.get(f"{address}/metrics", timeout=10).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(beginnings))


def test_knobs_reach_all_replicas_and_a_faulty_one_none(engine: Any) -> None:
    try:
        assert engine.set_knobs(max_batch_size=5).max_batch_size == 5
        for about in engine._ask_all("about", timeout_s=5):
            assert about.knobs.max_batch_size == 5
        with pytest.raises(ValueError, match="max_batch_size"):
            engine.set_knobs(max_batch_size=0)
        assert engine.knobs.max_batch_size == 5
    finally:
        engine.set_knobs(max_batch_size=KNOBS.max_batch_size)


def test_the_caches_of_all_are_cleared(address: str) -> None:
    assert httpx.post(f"{address}/reset_prefix_cache", timeout=10).status_code == 200
    ask = {"model": MODEL, "prompt": list(range(20, 84)), "max_tokens": 2}
    counts = []
    for _ in range(2):
        counts += [httpx.post(f"{address}/v1/completions", json=ask, timeout=60).json()["usage"] for _ in range(2)]
        assert httpx.post(f"{address}/reset_prefix_cache", timeout=10).status_code == 200
    assert [usage["prompt_tokens_details"]["cached_tokens"] > 0 for usage in counts] == [False, True] * 2


def test_a_replica_may_be_several_processes(own_ray: None) -> None:
    from roseplay.extras.ray.extra import serve
    from roseplay.extras.ray.local import deploy

    config = EngineConfig(worker="process", threads=1, num_blocks=200, tensor_parallel_size=2)
    handle, about = deploy(RaySettings(MODEL, config, KNOBS, grace_s=5.0), "split")
    prompt, params = "Once upon a time", SamplingParams(max_new_tokens=40, temperature=0.0)
    with RayEngine(handle, about, config, open_tokenizer(MODEL, config), 1) as split:
        found = split.submit(prompt, params).result(60)
        assert found.error is None
        assert listening(os.getpid()) <= LOOPBACK
    serve.delete("split")
    with Engine(MODEL, config=config) as alone:
        assert found.token_ids == alone.submit(prompt, params).result(60).token_ids


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_nothing_listens_beyond_this_machine(engine: Any) -> None:
    assert listening(os.getpid()) <= LOOPBACK


def listening(root: int) -> set[str]:
    """The addresses at which a process and its children listen."""
    addresses = {}  # by inode
    for name in "tcp", "tcp6":
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, address, _, state, *_, inode = line.split()[:10]
            if state == "0A":
                addresses[f"socket:[{inode}]"] = address.rpartition(":")[0]
    return {addresses[inode] for pid in family(root) for inode in sockets(pid) if inode in addresses}


def family(root: int) -> list[int]:
    found = [root]
    for pid in found:  # grows while it is iterated
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += [int(child) for child in children.read_text().split()]
    return found


def sockets(pid: int) -> list[str]:
    found = []
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(path))
    return found
