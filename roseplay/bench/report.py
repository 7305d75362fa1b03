"""What a benchmark says of its runs: lines for people, a dictionary for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from roseplay.bench.runs import Runs
from roseplay.config import Knobs
from roseplay.traffic.environment import environment
from roseplay.traffic.metrics import Metrics, Percentiles

if TYPE_CHECKING:
    from roseplay.core.info import EngineInfo

ROWS = (
    ("submit latency", "submit", "ms"),
    ("queue", "queue", "ms"),
    ("TTFT", "ttft", "ms"),
    ("TPOT", "tpot", "ms/token"),
    ("ITL", "itl", "ms"),
    ("E2E", "e2e", "ms"),
)


def lines(info: EngineInfo, runs: Runs, *, random_weights: bool = False) -> list[str]:
    """The median run's figures, a line each."""
    metrics = runs.median
    weights = ", random weights" if random_weights else ""
    return [
        f"model           {info.model} ({info.architecture}, {info.num_parameters / 1e6:.1f}M parameters{weights})",
        f"device          {info.device}, {info.dtype}, {info.threads} threads, attention {info.attention}",
        f"requests        {metrics.requests}",
        f"prompt tokens   {metrics.prompt_tokens}{_saved(metrics)}",
        f"output tokens   {metrics.completion_tokens}",
        f"submit wall     {metrics.submit_wall_s:.6f} s",
        *(f"{title:<15} p50/p95/p99 {row(getattr(metrics, name))} {unit}" for title, name, unit in ROWS),
        f"throughput      {metrics.output_tokens_per_s:.2f} tokens/s{_spread(runs)}",
    ]


def row(values: Percentiles) -> str:
    """``p50/p95/p99`` with two digits, ``-`` where there is no value."""
    return "/".join("-" if value is None else f"{value:.2f}" for value in (values.p50, values.p95, values.p99))


def _saved(metrics: Metrics) -> str:
    parts = [(metrics.cached_tokens, "cached"), (metrics.shared_tokens, "shared within a step")]
    told = ", ".join(f"{count} {what}" for count, what in parts if count)
    return f" ({told})" if told else ""


def _spread(runs: Runs) -> str:
    if len(runs.metrics) < 2:
        return ""
    low, high = runs.spread
    return f" (median of {len(runs.metrics)} runs, {low:.2f} to {high:.2f})"


def document(info: EngineInfo, knobs: Knobs, runs: Runs, *, random_weights: bool = False) -> dict[str, Any]:
    """The median run's figures, and of each run its tokens/s; times in seconds (``_s``) and milliseconds (``_ms``)."""
    metrics = runs.median
    return {
        "submit_wall_s": metrics.submit_wall_s,
        "output_tokens_per_s": metrics.output_tokens_per_s,
        "prompt_tokens": metrics.prompt_tokens,
        "completion_tokens": metrics.completion_tokens,
        "requests": metrics.requests,
        "ended_early": metrics.ended_early,
        **metrics.latencies_ms(),
        "knobs": knobs.to_dict(),
        "environment": environment(threads=info.threads, device=info.device),
        "model": {**asdict(info), "random_weights": random_weights},
        "cached_tokens": metrics.cached_tokens,
        "shared_tokens": metrics.shared_tokens,
        "preemptions": metrics.preemptions,
        "wall_s": metrics.wall_s,
        "runs": [
            {"output_tokens_per_s": run.output_tokens_per_s, "submit_wall_s": run.submit_wall_s, "wall_s": run.wall_s}
            for run in runs.metrics
        ],
    }
