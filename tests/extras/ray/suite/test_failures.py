"""A killed replica loses only its own requests; one that is replaced finishes them."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from roseplay.config import Knobs, SamplingParams
from roseplay.core.request import FinishReason
from roseplay.extras.ray.monitor import RayMonitor
from roseplay.serve.app import ServedEngine
from tests.extras.ray.suite.conftest import MODEL, settings
from tests.serve.conftest import serving
from tests.waiting import wait_until

pytest.importorskip("roseplay.extras.ray.environment", reason="Ray is not installed", exc_type=ImportError)
pytestmark = pytest.mark.slow

LONG = SamplingParams(max_new_tokens=600, ignore_eos=True)


def pids_of(name: str) -> list[int]:
    """The processes of a deployment's replicas, found by the titles that Ray gives them."""
    title = f"ray::ServeReplica:{name}:Replica"
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().decode(errors="replace").startswith(title):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_a_killed_replica_loses_only_its_requests_that_have_tokens(deployed: Any) -> None:
    with deployed("killed") as engine, serving(engine, monitor=RayMonitor(ServedEngine(engine))) as address:
        warm = [engine.submit(f"Story {number}", SamplingParams(max_new_tokens=4)) for number in range(8)]
        assert {stream.result(30).error for stream in warm} == {None}
        httpx.get(f"{address}/metrics", timeout=10)  # the last report of the one that is killed
        streams = [engine.submit(f"Story {number}", LONG) for number in range(16)]  # as many as both compute at a time
        for stream in streams:
            assert stream.wait_for_first_token(30)
        waiting = [engine.submit(f"Tale {number}", LONG) for number in range(8)]
        events: list[str] = []
        reader = threading.Thread(target=read_stream, args=(address, events))
        reader.start()
        wait_until(lambda: engine.num_unfinished == 25, "the last request")
        before = pids_of("killed")
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        ends = [stream.result(60) for stream in streams]
        failed = [stream for stream in ends if stream.finish_reason is FinishReason.ERROR]
        assert 0 < len(failed) < len(streams)
        assert all("died" in str(stream.error) for stream in failed)
        assert all(len(s.token_ids) == 600 for s in (*ends, *waiting) if s not in failed and s.result(60))
        reader.join(60)
        assert events[-1] == "data: [DONE]" and not reader.is_alive() and "error" not in events[-2]
        resent = [stream for stream in waiting if stream.sendings > 1]
        assert 0 < len(resent) < len(waiting)
        assert figure(address, 'roseplay:client_requests_total{finished_reason="error"') == len(failed)
        assert figure(address, 'roseplay:client_requests_total{finished_reason="length"') == 33 - len(failed)
        assert figure(address, "roseplay:resent_requests_total") >= len(resent)
        kept = figure(address, 'vllm:generation_tokens_total{ended="true"')
        assert 0 < kept < 8 * 4
        received = sum(len(stream.token_ids) for stream in (*warm, *ends, *waiting)) + 600
        assert figure(address, "roseplay:client_tokens_total") == received  # those of the last second too
        wait_until(lambda: set(pids_of("killed")) - set(before), "a replica that replaces it", timeout=60)


def test_requests_of_a_failed_engine_go_to_another_replica(deployed: Any) -> None:
    with deployed("failed", worker="process") as engine:
        streams = [engine.submit(f"Story {number}", LONG) for number in range(16)]
        for stream in streams:
            assert stream.wait_for_first_token(30)
        waiting = [engine.submit(f"Tale {number}", SamplingParams(max_new_tokens=4)) for number in range(8)]
        for children in Path(f"/proc/{pids_of('failed')[0]}/task").glob("*/children"):  # of each thread
            for child in children.read_text().split():
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGKILL)
        assert {stream.result(60).error for stream in waiting} == {None}
        assert any(stream.sendings > 1 for stream in waiting)
        assert 0 < sum(stream.result(60).error is not None for stream in streams) < len(streams)


def figure(address: str, sample: str) -> float:
    """The sum of the samples that begin like this."""
    lines = httpx.get(f"{address}/metrics", timeout=10).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(sample))


def read_stream(address: str, events: list[str]) -> None:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 600, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as reply:
        events += [line for line in reply.iter_lines() if line.startswith("data: ")]


def test_a_replica_that_is_replaced_finishes_its_requests(deployed: Any) -> None:
    with deployed("drained") as engine:
        streams = [engine.submit(f"Story {number}", LONG) for number in range(6)]
        for stream in streams:
            assert stream.wait_for_first_token(30)
        before = set(pids_of("drained"))
        from roseplay.extras.ray.local import deploy

        deploy(settings(knobs=Knobs(max_batch_size=4)), "drained")
        assert [str(stream.result(60).finish_reason) for stream in streams] == ["length"] * 6
        assert len(before) == 2 and not before & set(pids_of("drained"))
        assert engine.submit("Hello", SamplingParams(max_new_tokens=4)).result(20).error is None
