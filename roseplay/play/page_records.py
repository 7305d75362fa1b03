"""What the page gets of requests, in times of its own clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from roseplay.engine.records import FACTS, RequestRecord, names_of
from roseplay.play.prompt_cache import miss_of
from roseplay.recording.frame import Fields
from roseplay.recording.request_registry import RequestRegistry, TrackedRequest
from roseplay.recording.rows import PageTime
from roseplay.traffic.metrics import ms, percentile

# What is told of a request with its events: figures that steps and tokens do not tell. Another server reports some only
# at the end.
TOLD = {
    "submitted": ("kind", "lane", "burst", "tenant", "priority", "thinking", "prompt_tokens", "arrived"),
    "scheduled": ("queue_ms",),
    "first": ("ttft_ms", "ttft_parts", "miss"),
    "finished": ("prompt_tokens", "cached", "queue_ms", "sent_ms", "ttft_ms", "ttft_parts", "miss",
                 "e2e_ms", "itl_p50", "tokens", "reason", "error"),
}  # fmt: skip
_NAMES = names_of(RequestRecord)
_UNKNOWN = RequestRecord()


def about_request(
    tracked: TrackedRequest, registry: RequestRegistry, page_time: PageTime, names: Iterable[str] = _NAMES
) -> Fields:
    """Returns what is known of a request, as in a frame or a snapshot; fields that have their defaults are left out.

    Args:
        names: of the fields to return.
    """
    record = request_record(tracked, registry, page_time)
    fields = {name: getattr(record, name) for name in names}
    return {name: value for name, value in fields.items() if value != getattr(_UNKNOWN, name)}


def request_record(tracked: TrackedRequest, registry: RequestRegistry, page_time: PageTime) -> RequestRecord:
    """Returns what is known of a request now."""
    stream, metrics, miss = tracked.stream, tracked.stream.metrics, miss_of(tracked, registry)

    def at(time_ns: int | None) -> float | None:
        return None if time_ns is None else page_time.ms(time_ns)

    return RequestRecord(
        **{name: getattr(tracked, name) for name in FACTS},
        prompt_tokens=tracked.prompt_tokens,
        arrived=at(metrics.due_ns),
        submitted=at(metrics.submitted_ns),
        scheduled=at(metrics.scheduled_ns),
        first=at(metrics.first_token_ns),
        last=at(metrics.last_token_ns),
        finished=at(metrics.finished_ns) if tracked.finished else None,
        queue_ms=ms(metrics.queue_s),
        sent_ms=ms(metrics.sent_s),
        ttft_ms=ms(metrics.ttft_s),
        ttft_parts=metrics.ttft_parts_ms,
        e2e_ms=ms(metrics.e2e_s),
        itl_p50=ms(percentile(sorted(metrics.itl_s), 50)),
        itl_max=ms(max(metrics.itl_s, default=None)),
        tokens=metrics.completion_tokens,
        preemptions=metrics.num_preemptions,
        miss=None if miss is None else asdict(miss),
        reason=str(stream.finish_reason) if stream.finish_reason else None,
        error=stream.error,
    )
