"""Turns the engine's telemetry into forward pass metrics: sums over the requests of each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from roseplay.engine.records import StepRecord
from roseplay.engine.telemetry import RequestEvent, StepEvent, TelemetryEvent
from roseplay.wire.forward_pass import ForwardPassMetrics, QueuedRequests, ScheduledRequests

MOST_CONTEXTS = 1 << 15  # requests whose context is kept: several times the most that can run


class StepSums:
    """Tracks what the sums need: the lengths of waiting prompts, and the context that decodes read.

    Args:
        timing_scope: what a step record's ``device_ns`` measures.
        most_contexts: the most requests whose context is kept.
    """

    def __init__(self, worker_id: str, timing_scope: str, most_contexts: int = MOST_CONTEXTS) -> None:
        self._worker_id = worker_id
        self._timing_scope = timing_scope
        self._most_contexts = most_contexts
        self._live: set[int] = set()  # submitted, and not finished
        self._prompts: dict[int, int] = {}  # lengths, for requests not yet admitted, in order of arrival
        self._preempted: dict[int, int] = {}  # tokens of context that they lost and must compute again
        self._contexts: dict[int, int] = {}  # tokens in a request's blocks, the most recently run request last

    def take(self, event: TelemetryEvent) -> ForwardPassMetrics | None:
        """Returns the metrics of a step; ``None`` for other events, and for records of steps that computed nothing."""
        if isinstance(event, RequestEvent):
            self._request(event)
        if not isinstance(event, StepEvent) or not event.record.entries:
            return None
        record = event.record
        return ForwardPassMetrics(
            worker_id=self._worker_id,
            timing_scope=self._timing_scope,
            wall_time=record.device_ns / 1e9,
            scheduled_requests=self._scheduled(record, Counter(token.request_id for token in event.tokens)),
            queued_requests=self._queued(record.waiting),
        )

    def _request(self, event: RequestEvent) -> None:
        if event.kind == "submitted":
            self._live.add(event.request_id)
            self._prompts[event.request_id] = 0 if event.stream is None else event.stream.metrics.prompt_tokens
        elif event.kind == "finished":
            self._live.discard(event.request_id)
            self._prompts.pop(event.request_id, None)
            self._preempted.pop(event.request_id, None)

    def _scheduled(self, record: StepRecord, drawn: Mapping[int, int]) -> ScheduledRequests:
        """Returns sums over the requests of a step, in which they have ``drawn`` as many tokens."""
        for request_id in record.preempted:
            context = self._contexts.pop(request_id, 0)
            if request_id in self._live:  # a step may follow a request's end
                self._preempted[request_id] = context
        for request_id in record.admitted:
            self._prompts.pop(request_id, None)
            self._preempted.pop(request_id, None)
        prompts = [entry for entry in record.entries if not entry.decode_tokens]
        decodes = [entry for entry in record.entries if entry.decode_tokens]
        read = [self._contexts.get(entry.request_id, entry.target) for entry in decodes]
        for entry in prompts:
            self._set_context(entry.request_id, entry.computed)
        for entry, context in zip(decodes, read, strict=True):
            kept = 1 if entry.decode_tokens == 1 else drawn.get(entry.request_id, 1)  # without drafts that were wrong
            self._set_context(entry.request_id, context + kept)
        return ScheduledRequests(
            num_prefill_requests=len(prompts),
            sum_prefill_tokens=record.prompt_tokens,
            var_prefill_length=_variance([entry.target for entry in prompts]),
            sum_prefill_kv_tokens=sum(entry.computed - entry.prompt_tokens for entry in prompts),
            num_decode_requests=len(decodes),
            sum_decode_kv_tokens=sum(read),
            var_decode_kv_tokens=_variance(read),
        )

    def _set_context(self, request_id: int, tokens: int) -> None:
        """Set a context and drop the least recently used. The end of a request cannot drop it: a step may follow."""
        self._contexts.pop(request_id, None)
        self._contexts[request_id] = tokens
        if len(self._contexts) > self._most_contexts:
            del self._contexts[next(iter(self._contexts))]

    def _queued(self, waiting: int) -> QueuedRequests:
        """Returns sums over the ``waiting`` requests that the worker knew of; more may have been submitted since."""
        contexts = list(self._preempted.values())[:waiting]
        fresh = waiting - len(contexts)
        prompts = list(self._prompts.values())[:fresh]
        return QueuedRequests(
            num_prefill_requests=fresh,
            sum_prefill_tokens=sum(prompts),
            var_prefill_length=_variance(prompts),
            num_decode_requests=len(contexts),
            sum_decode_kv_tokens=sum(contexts),
            var_decode_kv_tokens=_variance(contexts),
        )


def _variance(values: Sequence[int]) -> float:
    if not values:
        return 0.0
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)
