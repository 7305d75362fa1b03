"""Histograms of a request's phases, from times that were set by hand."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import RequestEvent
from roseplay.serve.metrics import Metrics
from tests.play.fake_engine import INFO, FakeEngine

SECOND = 10**9


def ended(*, scheduled: int | None = None, tokens: tuple[int, ...] = (), cached: int = 0, shared: int = 0) -> Stream:
    """A request with a prompt of 50 tokens, submitted at 1 s and finished at 30 s."""
    stream = FakeEngine().submit(list(range(50)), SamplingParams(max_new_tokens=8))
    metrics = stream.metrics
    metrics.submitted_ns, metrics.cached_tokens, metrics.shared_tokens = SECOND, cached, shared
    metrics.scheduled_ns = None if scheduled is None else scheduled * SECOND
    for at_s in tokens:
        metrics.took(at_s * SECOND)
    stream.finish(FinishReason.LENGTH, 30 * SECOND)
    return stream


def told(stream: Stream) -> dict[str, float]:
    metrics = Metrics(INFO)
    metrics.take(RequestEvent("first_token", 1, 0, stream))
    metrics.take(RequestEvent("finished", 1, 0, stream))
    found = [sample for family in metrics.registry.collect() for sample in family.samples]
    return {sample.name.removeprefix("vllm:"): sample.value for sample in found if "_bucket" not in sample.name}


def test_each_phase_has_its_time() -> None:
    found = told(ended(scheduled=4, tokens=(11, 14, 19), cached=16, shared=2))
    times = {"queue": 3, "prefill": 7, "decode": 8, "inference": 15}
    for phase, seconds in times.items():
        assert found[f"request_{phase}_time_seconds_count"] == 1
        assert found[f"request_{phase}_time_seconds_sum"] == seconds
    assert found["e2e_request_latency_seconds_sum"] == 29
    assert found["time_to_first_token_seconds_sum"] == 10
    assert found["request_time_per_output_token_seconds_sum"] == 4
    assert found["request_prompt_tokens_sum"] == found["prompt_tokens_total"] == 50
    assert found["request_generation_tokens_sum"] == found["request_max_num_generation_tokens_sum"] == 3
    assert found["request_params_max_tokens_sum"] == 8
    assert found["prefix_cache_hits_total"] == found["prompt_tokens_cached_total"] == 18
    assert found["request_prefill_kv_computed_tokens_sum"] == 32


@pytest.mark.parametrize("how", [{"tokens": (3, 4)}, {"scheduled": 2}])
def test_what_a_request_did_not_come_to_is_not_counted(how: dict[str, Any]) -> None:
    found = told(ended(**how))
    for phase in ("prefill", "decode", "inference"):
        assert found[f"request_{phase}_time_seconds_count"] == 0
    assert found["e2e_request_latency_seconds_count"] == 1
    assert found["request_queue_time_seconds_count"] == ("scheduled" in how)
