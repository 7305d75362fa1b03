"""OpenTelemetry spans, as in vLLM: one for each API request that reached the engine.

A span is called ``llm_request``, lasts from the request's arrival at the engine to the end of its last answer, and has
vLLM's attributes and some from OpenTelemetry's conventions for generative models. It belongs to the trace that the
request's ``traceparent`` names. It is created when the engine's telemetry reports the request's end, and sent by a
thread of the exporter: neither the engine nor the event loop waits for a collector.

Raises:
    ImportError: on import, one line, if a package of the extra ``otel`` is missing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from roseplay.core.request import FinishReason
from roseplay.engine.request_metrics import RequestMetrics
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import RequestEvent, TelemetryEvent
from roseplay.serve.answers import Answer

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(f"{error.name} is not installed: pip install 'roseplay[otel]'", name=error.name) from None

SPAN = "llm_request"
ABORT_S = 1.0
FLUSH_S = 3.0
_PATH = "/v1/traces"  # for endpoints without a path
_REQUEST = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")
_HEADERS = ("traceparent", "tracestate")


class Traces:
    """Sends a span for each request that it follows, once that has ended.

    Args:
        endpoint: of a collector that takes OTLP over HTTP: ``http://host:4318``, or with a path. OpenTelemetry's
            variables set the rest (``OTEL_SERVICE_NAME``, ``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_TRACES_SAMPLER`` and
            so on).
        abort_s, flush_s: how long ``close`` waits for aborted requests to end, and for spans to be sent.
    """

    def __init__(self, endpoint: str, *, abort_s: float = ABORT_S, flush_s: float = FLUSH_S) -> None:
        self._abort_s, self._flush_s = abort_s, flush_s
        # A service name in the variables takes precedence over ours.
        resource = Resource.create({"service.name": "roseplay"}).merge(OTELResourceDetector().detect())
        # Not the global provider: libraries would find that one and add spans of their own.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        if not urlsplit(endpoint).path.strip("/"):
            endpoint = endpoint.rstrip("/") + _PATH
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("roseplay")
        self._propagator = TraceContextTextMapPropagator()
        self._lock = threading.Lock()
        self._running: dict[Stream, tuple[Answer, dict[str, str]]] = {}

    def follow(self, answer: Answer, headers: Mapping[str, str]) -> None:
        """Send a span once all streams of an answer have ended; ``headers`` are those of its HTTP request."""
        parent = {name: headers[name] for name in _HEADERS if name in headers}
        with self._lock:
            self._running.update(dict.fromkeys(answer.streams, (answer, parent)))
        self._end_if_over(answer.streams[0])  # its last event may have been read before

    def take(self, event: TelemetryEvent) -> None:
        """Send a request's span if this event ends it."""
        if isinstance(event, RequestEvent) and event.kind == "finished" and event.stream is not None:
            self._end_if_over(event.stream)

    def close(self) -> None:
        """Send the remaining spans, within a few seconds."""
        deadline = time.monotonic() + self._abort_s
        for stream in list(self._running):
            with contextlib.suppress(TimeoutError):
                stream.result(max(0.0, deadline - time.monotonic()))
            self._end_if_over(stream)
        # An unreachable collector would delay this by the exporter's timeout.
        closing = threading.Thread(target=self._provider.shutdown, name="roseplay-traces", daemon=True)
        closing.start()
        closing.join(self._flush_s)

    def _end_if_over(self, stream: Stream) -> None:
        with self._lock:
            entry = self._running.get(stream)
            if entry is None or not all(one.finished for one in entry[0].streams):
                return
            for one in entry[0].streams:
                del self._running[one]
        self._send(*entry)

    def _send(self, answer: Answer, parent: Mapping[str, str]) -> None:
        to_epoch_ns = time.time_ns() - time.perf_counter_ns()  # the engine's clock is the latter
        times = _times_of(answer.streams)
        span = self._tracer.start_span(
            SPAN,
            context=self._propagator.extract(parent),
            kind=SpanKind.SERVER,
            attributes=_attributes(answer),
            start_time=times.submitted_ns + to_epoch_ns,
        )
        failed = next((stream for stream in answer.streams if stream.finish_reason in _FAILURES), None)
        if failed is not None:
            span.set_attribute("error.type", str(failed.finish_reason))
            span.set_status(StatusCode.ERROR, failed.error or _FAILURES[failed.finish_reason])
        span.end((times.finished_ns or times.submitted_ns) + to_epoch_ns)


_FAILURES: dict[FinishReason | None, str] = {FinishReason.ERROR: "the request failed", FinishReason.ABORT: "aborted"}


def _attributes(answer: Answer) -> dict[str, object]:
    """Returns a span's attributes, without undefined ones such as the times of a request that had no token."""
    params, usage, times = answer.streams[0].params, answer.usage(), _times_of(answer.streams)
    attributes = {
        "gen_ai.operation.name": "chat" if answer.chat else "text_completion",
        "gen_ai.request.id": answer.completion_id,
        "gen_ai.request.model": answer.model,
        "gen_ai.request.n": answer.answers_each,
        "gen_ai.request.max_tokens": params.max_new_tokens,
        **{f"gen_ai.request.{name}": getattr(params, name) for name in _REQUEST},
        "gen_ai.response.model": answer.model,
        "gen_ai.response.finish_reasons": [str(stream.finish_reason) for stream in answer.streams],
        "gen_ai.usage.prompt_tokens": usage["prompt_tokens"],
        "gen_ai.usage.completion_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "gen_ai.usage.num_sequences": len(answer.streams),
        "gen_ai.latency.time_in_queue": times.queue_s,
        "gen_ai.latency.time_to_first_token": times.ttft_s,
        "gen_ai.latency.e2e": times.e2e_s,
        "gen_ai.latency.time_in_model_prefill": times.prefill_s,
        "gen_ai.latency.time_in_model_decode": times.decode_s,
        "gen_ai.latency.time_in_model_inference": times.inference_s,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _times_of(streams: Iterable[Stream]) -> RequestMetrics:
    """Returns the times of several answers together: the earliest start and first token, and the last end."""
    metrics = [stream.metrics for stream in streams]
    return RequestMetrics(
        min(one.submitted_ns for one in metrics),
        metrics[0].prompt_tokens,
        scheduled_ns=min((one.scheduled_ns for one in metrics if one.scheduled_ns is not None), default=None),
        first_token_ns=min((one.first_token_ns for one in metrics if one.first_token_ns is not None), default=None),
        last_token_ns=max((one.last_token_ns for one in metrics if one.last_token_ns is not None), default=None),
        finished_ns=max((one.finished_ns for one in metrics if one.finished_ns is not None), default=None),
    )
