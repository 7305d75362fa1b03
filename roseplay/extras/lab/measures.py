"""The figures of a run: how each of them is computed from its requests and steps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Literal

from roseplay.extras.lab.document import Request, Run
from roseplay.extras.lab.types import FigureName, Limits, RunFigures
from roseplay.traffic.metrics import percentile

Measure = Callable[[Run, Limits], float | None]
_Time = Literal["submit_ms", "queue_ms", "ttft_ms", "ttft_from_arrival_ms", "tpot_ms", "e2e_ms"]  # of a request


def keeps(request: Request, limits: Limits) -> bool:
    """Whether a request met the limits: its TTFT, and the p99 of its ITLs if it has any."""
    return (
        request["ttft_ms"] is not None
        and request["ttft_ms"] <= limits["ttft_ms"]
        and (request["itl_p99_ms"] is None or request["itl_p99_ms"] <= limits["itl_ms"])
    )


def _per_second(count: float, run: Run) -> float:
    return count / run["seconds"] if run["seconds"] else 0.0


def _of_requests(key: _Time, percent: float) -> Measure:
    return lambda run, _: percentile(sorted(v for r in run["requests"] if (v := r[key]) is not None), percent)


def _of_gaps(percent: float) -> Measure:
    return lambda run, _: percentile(sorted(filter(None, run["itl_ms"])), percent)


def _ttft_of_longest(run: Run) -> float | None:
    """Returns the median TTFT of the requests with the longest prompts, within a tenth of the longest."""
    lengths = [request["prompt_tokens"] for request in run["requests"]]
    least = 0.9 * max(lengths, default=0)
    ttfts = [r["ttft_ms"] for r, length in zip(run["requests"], lengths, strict=True) if length >= least]
    return percentile(sorted(ttft for ttft in ttfts if ttft is not None), 50)


def _queue_of_tenant(run: Run, index: int) -> float | None:
    """Returns the median queueing time of the tenant at this place, by tokens and then by name; ``None`` if there are not
    several."""
    tokens: dict[str, float] = {}
    for request in run["requests"]:
        name = request.get("tenant", "")
        tokens[name] = tokens.get(name, 0) + request["prompt_tokens"] + request["completion_tokens"]
    if len(tokens) < 2:
        return None
    chosen = sorted(tokens, key=lambda name: (tokens[name], name))[index]
    waits = [r["queue_ms"] for r in run["requests"] if r.get("tenant", "") == chosen and r["queue_ms"] is not None]
    return percentile(sorted(waits), 50)


def _computed(run: Run) -> float | None:
    """Returns the number of computed prompt tokens; for a server that reports no steps, of those not cached."""
    if run["steps"]:
        return sum(step[2] for step in run["steps"])
    if run["saved_tokens"] is None:
        return None
    return sum(request["prompt_tokens"] for request in run["requests"]) - run["saved_tokens"]


MEASURES: Mapping[str, Measure] = {
    "output_tokens_per_s": lambda run, _: _per_second(sum(r["completion_tokens"] for r in run["requests"]), run),
    "goodput_req_s": lambda run, limits: _per_second(sum(keeps(r, limits) for r in run["requests"]), run),
    "ttft_p50_ms": _of_requests("ttft_ms", 50),
    "ttft_p95_ms": _of_requests("ttft_ms", 95),
    "ttft_p99_ms": _of_requests("ttft_ms", 99),
    "longest_ttft_ms": lambda run, _: _ttft_of_longest(run),
    "ttft_from_arrival_p50_ms": _of_requests("ttft_from_arrival_ms", 50),
    "ttft_from_arrival_p95_ms": _of_requests("ttft_from_arrival_ms", 95),
    "queue_p50_ms": _of_requests("queue_ms", 50),
    "tpot_p50_ms": _of_requests("tpot_ms", 50),
    "itl_p50_ms": _of_gaps(50),
    "itl_p95_ms": _of_gaps(95),
    "itl_p99_ms": _of_gaps(99),
    "itl_max_ms": _of_gaps(100),
    "e2e_p95_ms": _of_requests("e2e_ms", 95),
    "e2e_p99_ms": _of_requests("e2e_ms", 99),
    "submit_p50_ms": _of_requests("submit_ms", 50),
    "computed_tokens": lambda run, _: _computed(run),
    "saved_tokens": lambda run, _: run["saved_tokens"],
    "preemptions": lambda run, _: run["preemptions"],
    "recomputed_tokens": lambda run, _: run["recomputed_tokens"],
    "moved_mb": lambda run, _: run["moved_mb"],
    "mask_ms": lambda run, _: run.get("mask_ms"),
    "mask_wait_ms": lambda run, _: run.get("mask_wait_ms"),
}

# For runs with requests of tenants.
OF_TENANTS: Mapping[str, Measure] = {
    "small_tenant_queue_p50_ms": lambda run, _: _queue_of_tenant(run, 0),
    "large_tenant_queue_p50_ms": lambda run, _: _queue_of_tenant(run, -1),
}


def figures(run: Run, limits: Limits) -> RunFigures:
    """Returns the figures of a run that the result of a sweep or a search keeps."""

    def rounded(name: FigureName) -> float | None:
        value = MEASURES[name](run, limits)
        return None if value is None else round(value, 4)

    kept = sum(keeps(request, limits) for request in run["requests"])
    values: RunFigures = {
        "output_tokens_per_s": rounded("output_tokens_per_s"), "goodput_req_s": rounded("goodput_req_s"),
        "ttft_p50_ms": rounded("ttft_p50_ms"), "ttft_p95_ms": rounded("ttft_p95_ms"),
        "ttft_p99_ms": rounded("ttft_p99_ms"), "itl_p50_ms": rounded("itl_p50_ms"),
        "itl_p99_ms": rounded("itl_p99_ms"), "e2e_p99_ms": rounded("e2e_p99_ms"),
        "preemptions": rounded("preemptions"), "recomputed_tokens": rounded("recomputed_tokens"),
        "moved_mb": rounded("moved_mb"),
        "kept_pct": round(100 * kept / len(run["requests"]), 4),
        "prompt_tokens": round(statistics.fmean(request["prompt_tokens"] for request in run["requests"]), 4),
    }  # fmt: skip
    if "saturated" in run:
        values["saturated"] = run["saturated"]
    return values
