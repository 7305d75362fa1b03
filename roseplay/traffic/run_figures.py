"""The figures by which runs are compared: names, titles, units, and which direction is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Figure:
    name: str  # key in documents; ends with the unit
    title: str
    unit: str  # as displayed; "" for a plain count
    better: Literal["higher", "lower"]


FIGURES: Mapping[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure("output_tokens_per_s", "Throughput", "tok/s", "higher"),
        Figure("goodput_req_s", "Goodput", "requests/s", "higher"),
        Figure("kept_pct", "Within limits", "%", "higher"),
        Figure("ttft_p50_ms", "TTFT p50", "ms", "lower"),
        Figure("ttft_p95_ms", "TTFT p95", "ms", "lower"),
        Figure("ttft_p99_ms", "TTFT p99", "ms", "lower"),
        Figure("longest_ttft_ms", "TTFT, long prompts", "ms", "lower"),
        Figure("ttft_from_arrival_p50_ms", "TTFT from arrival p50", "ms", "lower"),
        Figure("ttft_from_arrival_p95_ms", "TTFT from arrival p95", "ms", "lower"),
        Figure("queue_p50_ms", "Queue time p50", "ms", "lower"),
        Figure("small_tenant_queue_p50_ms", "Queue time p50 of the smallest tenant", "ms", "lower"),
        Figure("large_tenant_queue_p50_ms", "Queue time p50 of the largest tenant", "ms", "lower"),
        Figure("tpot_p50_ms", "TPOT p50", "ms", "lower"),
        Figure("itl_p50_ms", "ITL p50", "ms", "lower"),
        Figure("itl_p95_ms", "ITL p95", "ms", "lower"),
        Figure("itl_p99_ms", "ITL p99", "ms", "lower"),
        Figure("itl_max_ms", "ITL worst", "ms", "lower"),
        Figure("e2e_p95_ms", "E2E p95", "ms", "lower"),
        Figure("e2e_p99_ms", "E2E p99", "ms", "lower"),
        Figure("submit_p50_ms", "Submit p50", "ms", "lower"),
        Figure("computed_tokens", "Prompt tokens computed", "", "lower"),
        Figure("saved_tokens", "Prompt tokens saved", "", "higher"),
        Figure("preemptions", "Preemptions", "", "lower"),
        Figure("recomputed_tokens", "Tokens computed again", "", "lower"),
        Figure("moved_mb", "Moved to the host and back", "MB", "lower"),
        Figure("mask_ms", "Masks per step", "ms", "lower"),
        Figure("mask_wait_ms", "Wait for masks per step", "ms", "lower"),
        Figure("kv_pool_tokens", "KV pool", "tokens", "lower"),
    )
}

# What each figure, or group of figures such as TTFT's percentiles, measures.
DEFINITIONS: Mapping[str, str] = {
    "output_tokens_per_s": "Generated tokens per second, for all requests together.",
    "goodput_req_s": "Requests per second that are within both limits: of TTFT, and of the ITL p99 among the request's own tokens.",
    "kept_pct": "The share of requests within both limits.",
    "ttft": "Time to first token: from submit to the first token.",
    "longest_ttft_ms": "The median TTFT of the requests whose prompts have at least nine tenths of the longest prompt's tokens.",
    "ttft_from_arrival": "From a request's intended arrival to its first token. It includes the time that a client waits to submit because an earlier call has not returned.",
    "queue": "From submit to the first step that works on the request.",
    "small_tenant_queue": "The same, for the requests of the tenant that sends the fewest tokens.",
    "large_tenant_queue": "The same, for the requests of the tenant that sends the most tokens.",
    "tpot": "Time per output token of a request after its first: (last − first) / (tokens − 1).",
    "itl": "Inter-token latency: the pause between two tokens of one answer.",
    "e2e": "From submit to the end of the answer.",
    "submit": "How long a call of submit takes.",
    "computed_tokens": "Prompt tokens that the model had to compute.",
    "saved_tokens": "Prompt tokens served from the prefix cache or shared within a step.",
    "preemptions": "How often a request lost its blocks to another and had to compute them again.",
    "recomputed_tokens": "Tokens that were computed again because a preempted request had lost their blocks.",
    "moved_mb": "KV blocks that were copied to host memory for preempted requests, and back.",
    "mask_ms": "How long it took to compute which tokens structured outputs allow next: median of the steps that had some.",
    "mask_wait_ms": "The part of this for which the step waited.",
    "kv_pool_tokens": "The most tokens that the KV blocks can hold.",
}
