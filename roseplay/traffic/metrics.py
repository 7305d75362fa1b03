"""The metrics of a played workload: percentiles over requests or, for ITL, over all gaps between tokens.

These definitions hold throughout roseplay. Only completed requests are measured; aborted, failed and refused ones are
counted separately, since the length of an interrupted answer says nothing about the engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from roseplay.core.request import FinishReason
from roseplay.engine.stream import Stream
from roseplay.traffic.driver import Played


@dataclass(frozen=True, slots=True)
class Percentiles:
    """p50, p95 and p99 in milliseconds; ``None`` if there are no values."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of_seconds(cls, seconds: Iterable[float | None]) -> Percentiles:
        """Returns the percentiles of values in seconds, skipping ``None`` (undefined for a request)."""
        values = sorted(1e3 * value for value in seconds if value is not None)
        return cls(*(percentile(values, percent) for percent in (50, 95, 99)))


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Returns a percentile of sorted values, interpolated linearly; ``None`` if there are no values."""
    if not 0 <= percent <= 100:
        raise ValueError(f"percent is {percent}: use 0 to 100")
    if not ordered:
        return None
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def ms(seconds: float | None, digits: int = 2) -> float | None:
    """Returns seconds as rounded milliseconds."""
    return None if seconds is None else round(seconds * 1e3, digits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    requests: int  # number sent, ``completed + aborted + failed + refused``
    completed: int
    aborted: int
    failed: int
    refused: int
    # Completed requests with fewer than ``max_new_tokens`` tokens, because of an end-of-sequence token or a stop.
    ended_early: int
    prompt_tokens: int  # of completed requests
    completion_tokens: int
    # Of their prompt tokens, those served by the prefix cache, and those that another request of the same step
    # computed.
    cached_tokens: int
    shared_tokens: int
    preemptions: int  # how often completed requests lost their blocks
    submit_wall_s: float  # first call of ``submit`` to the return of the last
    wall_s: float  # first call of ``submit`` to the end of the last completed request
    submit: Percentiles  # duration of the call of ``submit``
    queue: Percentiles  # first scheduled − submit
    ttft: Percentiles  # first token − submit
    # First token − intended arrival, which is earlier than the call of ``submit`` where an earlier call had not
    # returned.
    ttft_from_arrival: Percentiles
    tpot: Percentiles  # (last token − first) / (tokens − 1), of requests with two tokens or more
    # Every gap between two tokens of a request, all requests pooled; tokens that arrive together count as one, so that
    # the number of tokens per step shows in ``tpot`` and not here.
    itl: Percentiles
    e2e: Percentiles  # finish − submit

    @property
    def output_tokens_per_s(self) -> float:
        """Completion tokens per second of ``wall_s``."""
        return self.completion_tokens / self.wall_s if self.wall_s > 0 else 0.0

    def latencies_ms(self) -> dict[str, dict[str, float | None]]:
        """Returns ``{"submit_ms": {"p50", "p95", "p99"}, …}`` for each of ``LATENCIES``."""
        return {f"{name}_ms": asdict(getattr(self, name)) for name in LATENCIES}


LATENCIES = ("submit", "queue", "ttft", "ttft_from_arrival", "tpot", "itl", "e2e")


def measure(played: Played) -> Metrics:
    ended = dict.fromkeys(FinishReason, 0)
    completed: list[Stream] = []
    from_arrival: list[float | None] = []
    refused = ended_early = 0
    for outcome in played.outcomes:
        stream = outcome.stream
        if stream is None:
            refused += 1
            continue
        # A stream without a reason was aborted and has not reported it yet.
        reason = stream.finish_reason or FinishReason.ABORT
        ended[reason] += 1
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            completed.append(stream)
            from_arrival.append(outcome.ttft_from_arrival_s)
            ended_early += stream.metrics.completion_tokens < outcome.arrival.params.max_new_tokens
    metrics = [stream.metrics for stream in completed]
    start_ns = played.outcomes[0].submit_start_ns if played.outcomes else 0
    return Metrics(
        requests=len(played.outcomes),
        completed=len(completed),
        aborted=ended[FinishReason.ABORT],
        failed=ended[FinishReason.ERROR],
        refused=refused,
        ended_early=ended_early,
        prompt_tokens=sum(m.prompt_tokens for m in metrics),
        completion_tokens=sum(m.completion_tokens for m in metrics),
        cached_tokens=sum(m.cached_tokens for m in metrics),
        shared_tokens=sum(m.shared_tokens for m in metrics),
        preemptions=sum(m.num_preemptions for m in metrics),
        submit_wall_s=played.submit_wall_s,
        wall_s=max((m.finished_ns - start_ns for m in metrics if m.finished_ns is not None), default=0) / 1e9,
        submit=Percentiles.of_seconds(
            (outcome.submit_end_ns - outcome.submit_start_ns) / 1e9
            for outcome in played.outcomes
            if outcome.stream is not None
        ),
        queue=Percentiles.of_seconds(m.queue_s for m in metrics),
        ttft=Percentiles.of_seconds(m.ttft_s for m in metrics),
        ttft_from_arrival=Percentiles.of_seconds(from_arrival),
        tpot=Percentiles.of_seconds(m.tpot_s for m in metrics),
        itl=Percentiles.of_seconds(gap for m in metrics for gap in m.itl_s),
        e2e=Percentiles.of_seconds(m.e2e_s for m in metrics),
    )
