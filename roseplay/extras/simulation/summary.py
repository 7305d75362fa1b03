"""The figures of a simulation: percentiles as ``roseplay.traffic.metrics`` defines them, and whether it was saturated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roseplay.extras.simulation.outcome import Simulated
from roseplay.traffic.waits import waits_grow

# A run is saturated if the requests of its last quarter wait this much longer than those of its second.


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one simulation; times in seconds."""

    requests: int  # numbers of requests that were answered, and refused
    refused: int
    ttft_s: tuple[float, float, float]  # p50, p95 and p99 of the times to first tokens, and of all gaps between tokens
    itl_s: tuple[float, float, float]
    output_tokens_per_s: float  # tokens of all answers by the time from the first arrival to the last token
    preemptions: int  # how often requests lost their blocks
    cached: float  # share of the prompt tokens that the prefix cache served
    busiest: int  # the most requests that ran at once
    kv_use: float  # the largest share of the KV blocks in use at once
    saturated: bool  # whether waiting times grew during the run, so that all figures depend on its length


def summarize(simulated: Simulated, server_s: float = 0.0) -> Summary:
    """Returns the figures of a simulation in which at least one request was answered.

    Args:
        server_s: seconds of a server besides its steps, added to each time to first token.

    Raises:
        ValueError: no request was answered.
    """
    answered = [times for times in simulated.requests if times.spans]
    if not answered:
        raise ValueError(f"no request was answered: {simulated.requests[0].refused if simulated.requests else 'none'}")
    arrived = np.array([times.arrived_ns for times in answered])
    first = simulated.ends_ns[[times.spans[0][0] for times in answered]]
    ttft_s = (first - arrived) / 1e9 + server_s
    span_s = (simulated.ends_ns[-1] - arrived[0]) / 1e9
    return Summary(
        requests=len(answered),
        refused=len(simulated.requests) - len(answered),
        ttft_s=_percentiles(ttft_s, np.ones(len(ttft_s), np.int64)),
        itl_s=_percentiles(*_gaps_s(simulated)),
        output_tokens_per_s=simulated.tokens / max(float(span_s), 1e-9),
        preemptions=sum(times.preemptions for times in answered),
        cached=sum(times.cached_tokens for times in answered) / sum(times.prompt_tokens for times in answered),
        busiest=simulated.busiest,
        kv_use=simulated.peak_blocks / simulated.num_blocks,
        saturated=bool(arrived[-1] > arrived[0]) and waits_grow(ttft_s.tolist()),
    )


def _gaps_s(simulated: Simulated) -> tuple[np.ndarray, np.ndarray]:
    """Returns all gaps between two tokens of a request ``[n]`` in seconds, and how many requests had each ``[n]``."""
    ends = simulated.ends_ns
    counts = np.zeros(len(ends) + 1, np.int64)
    apart = []
    for times in simulated.requests:
        for first, last in times.spans:
            counts[first + 1] += 1
            counts[last + 1] -= 1
        apart += [ends[b[0]] - ends[a[1]] for a, b in zip(times.spans, times.spans[1:], strict=False)]
    gaps = np.concatenate([np.diff(ends), np.array(apart, np.int64)]) / 1e9
    weights = np.concatenate([np.cumsum(counts)[1 : len(ends)], np.ones(len(apart), np.int64)])
    return gaps[weights > 0], weights[weights > 0]


def _percentiles(values: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    """Returns p50, p95 and p99, interpolated linearly, of values that occur ``weights`` times; 0 if there are none."""
    if not len(values):
        return (0.0, 0.0, 0.0)
    order = np.argsort(values)
    values, upto = values[order], np.cumsum(weights[order])
    percentiles = []
    for percent in (50, 95, 99):
        position = (int(upto[-1]) - 1) * percent / 100
        low = values[np.searchsorted(upto, int(position), side="right")]
        high = values[np.searchsorted(upto, min(int(position) + 1, int(upto[-1]) - 1), side="right")]
        percentiles.append(float(low + (high - low) * (position - int(position))))
    return (percentiles[0], percentiles[1], percentiles[2])
