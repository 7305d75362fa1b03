"""``/metrics`` for Prometheus: vLLM's families, with their names, types, labels and meanings.

So dashboards made for vLLM show this engine too. Histograms have vLLM's bounds and finer ones below them, since a small
model answers within a millisecond. Times are the telemetry's (see ``engine/telemetry.py``); prompt tokens are counted
when a request has its first token, generated tokens as they come. Families that vLLM does not have are named
``roseplay:``: the parts of TTFT, and decode stalls, by cause; and what preemptions cost.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable, Sequence
from itertools import count, takewhile
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase

from roseplay.clock import SYSTEM_CLOCK
from roseplay.core.info import EngineInfo
from roseplay.core.request import FinishReason
from roseplay.engine.records import StepRecord
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import Load, RequestEvent, StepEvent, TelemetryEvent
from roseplay.engine.ttft_causes import TTFTCauses
from roseplay.recording.late_tokens import LateTokens
from roseplay.recording.rows import PageTime, step_row, token_rows
from roseplay.serve.gap_histogram import GapHistogram

disable_created_metrics()  # a second series for each counter and histogram, of no use here

_FINE_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005)
_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_GAP_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FINE_REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2)
_ANSWERS = (1, 2, 5, 10, 20)
_PREEMPTED = (0, 1, 2, 5, 10, 20)
_STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

# The causes of late tokens, as the label of a metric.
_STALLED: dict[str, str] = {
    "preempted": "preemption",
    "left out": "prompts",
    "prompts": "prompts",
    "masks": "host",
    "host": "host",
    "copies": "other",
    "batch": "other",
    "other": "other",
}


class Metrics:
    """The families of one engine.

    Args:
        info: the engine's; gives the labels and the range of the token histograms.
        engine: the engine's label within its server.
        model_name: the model's label, by default its name.
        kv_dtype: as in ``EngineConfig``.
    """

    def __init__(
        self, info: EngineInfo, engine: str = "0", *, model_name: str | None = None, kv_dtype: str = "auto"
    ) -> None:
        self.registry = CollectorRegistry()
        self._info, self._kv_dtype = info, kv_dtype
        self._labels = {"model_name": model_name or info.model, "engine": engine}
        self._last: StepRecord | None = None
        self._time = PageTime(SYSTEM_CLOCK)
        self._late = LateTokens()
        self._make_gauges()
        self._make_counters()
        self._make_histograms()

    def _make(self, kind: type[MetricWrapperBase], name: str, about: str, **options: Any) -> Any:
        labels = options.pop("labels", ())
        full_name = name if ":" in name else f"vllm:{name}"
        family = kind(full_name, about, [*self._labels, *labels], registry=self.registry, **options)
        return family if labels else family.labels(**self._labels)

    def _make_gauges(self) -> None:
        self._running = self._make(Gauge, "num_requests_running", "Requests in the batch.")
        self._waiting = self._make(Gauge, "num_requests_waiting", "Requests that wait for the batch.")
        by_reason = self._make(
            Gauge, "num_requests_waiting_by_reason", "Requests that wait, by reason.", labels=("reason",)
        )
        self._for_capacity = by_reason.labels(**self._labels, reason="capacity")
        by_reason.labels(**self._labels, reason="deferred").set(0)  # there is no other reason to wait
        self._kv = self._make(Gauge, "kv_cache_usage_perc", "Share of the KV blocks that requests hold, from 0 to 1.")
        asleep = self._make(Gauge, "engine_sleep_state", "1 for the engine's current state.", labels=("sleep_state",))
        for state in ("awake", "weights_offloaded", "discard_all"):  # this engine never sleeps
            asleep.labels(**self._labels, sleep_state=state).set(state == "awake")
        info = self._info
        about = {
            "block_size": str(info.block_size),
            "cache_dtype": info.dtype if self._kv_dtype == "auto" else self._kv_dtype,
            "num_gpu_blocks": str(info.num_blocks - 1),
            "kv_cache_size_tokens": str(tokens := (info.num_blocks - 1) * info.block_size),
            "kv_cache_max_concurrency": f"{tokens / max(1, info.max_model_len):.2f}",
        }
        names = ["engine", *about]
        config = Gauge("vllm:cache_config_info", "How the KV cache is laid out.", names, registry=self.registry)
        config.labels(engine=self._labels["engine"], **about).set(1)

    def _make_counters(self) -> None:
        make = self._make
        self._prompt = make(Counter, "prompt_tokens", "Prompt tokens of requests that have a first token.")
        self._cached = make(Counter, "prompt_tokens_cached", "Prompt tokens that were not computed.")
        sources = make(Counter, "prompt_tokens_by_source", "Prompt tokens by their source.", labels=("source",))
        self._computed, self._found, _ = (
            sources.labels(**self._labels, source=source)
            for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
        )
        caches = make(Counter, "prompt_tokens_cached_by_source", "Cached prompt tokens by source.", labels=("source",))
        self._on_device = caches.labels(**self._labels, source="device")
        self._generated = make(Counter, "generation_tokens", "Tokens generated.")
        self._queries = make(Counter, "prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = make(Counter, "prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._preemptions = make(Counter, "num_preemptions", "Requests that lost their blocks and began again.")
        again = "Tokens that were computed again after a preemption."
        self._recomputed = make(Counter, "roseplay:recomputed_tokens", again)
        about = "Bytes of KV blocks that were copied to host memory (out) and back (in) for preempted requests."
        swapped = make(Counter, "roseplay:swapped_bytes", about, labels=("direction",))
        self._out, self._in = (swapped.labels(**self._labels, direction=way) for way in ("out", "in"))
        self._drafts = make(Counter, "spec_decode_num_drafts", "Drafts of speculative tokens that were checked.")
        self._drafted = make(Counter, "spec_decode_num_draft_tokens", "Tokens of these drafts.")
        self._accepted = make(Counter, "spec_decode_num_accepted_tokens", "Tokens of these drafts that were right.")
        by_position = ("spec_decode_num_accepted_tokens_per_pos", "The same, by position in the draft.")
        self._accepted_at = make(Counter, *by_position, labels=("position",))
        self._accepted_at.labels(**self._labels, position="0")
        ends = make(Counter, "request_success", "Requests that ended, by reason.", labels=("finished_reason",))
        self._ended = {
            reason: ends.labels(**self._labels, finished_reason=str(reason.value)) for reason in FinishReason
        }
        rejections = make(Counter, "admission_rejections", "Requests refused, by reason.", labels=("reason",))
        self._rejected = rejections.labels(**self._labels, reason="queue_full")

    def _make_histograms(self) -> None:
        tokens = tuple(_one_two_five(self._info.max_model_len))

        def histogram(name: str, about: str, *buckets: Sequence[float], **options: Any) -> Any:
            bounds = sorted({float(b) for part in buckets for b in part})
            return self._make(Histogram, name, about, buckets=bounds, **options)

        def by_cause(name: str, about: str, causes: Iterable[str], bounds: Sequence[float]) -> dict[str, Any]:
            family = histogram(f"roseplay:{name}", about, _FINE_S, bounds, labels=("cause",))
            return {cause: family.labels(**self._labels, cause=cause) for cause in causes}

        self._step_tokens = histogram("iteration_tokens_total", "Tokens that a step computed.", _STEP_TOKENS)
        self._ttft = histogram("time_to_first_token_seconds", "From submit to the first token.", _FINE_S, _TTFT_S)
        gaps, about = sorted({*_FINE_S, *_GAP_S}), "Between two tokens of a request."
        self._itl = GapHistogram("vllm:inter_token_latency_seconds", about, self._labels, gaps, self.registry)
        self._tpot = histogram(
            "request_time_per_output_token_seconds", "Mean time per token after the first.", _FINE_S, _GAP_S
        )
        parts = [name.removesuffix("_s") for name in TTFTCauses._fields]
        self._ttft_parts = by_cause("ttft_part_seconds", "Parts of the time to first token, by cause.", parts, _TTFT_S)
        about = "Time beyond the usual gap of tokens that came late, by cause."
        self._stalled = by_cause("decode_stall_seconds", about, dict.fromkeys(_STALLED.values()), _GAP_S)
        phases = {
            "e2e_request_latency_seconds": "From submit to the end of the request.",
            "request_queue_time_seconds": "From submit to the first step that scheduled the request.",
            "request_inference_time_seconds": "From the first step that scheduled the request to its last token.",
            "request_prefill_time_seconds": "From the first step that scheduled the request to its first token.",
            "request_decode_time_seconds": "From the first token to the last.",
        }
        self._e2e, self._queue, self._inference, self._prefill, self._decode = (
            histogram(name, about, _FINE_REQUEST_S, _REQUEST_S) for name, about in phases.items()
        )
        sizes = {
            "request_prompt_tokens": "Prompt tokens of a request.",
            "request_generation_tokens": "Tokens generated for a request.",
            "request_max_num_generation_tokens": "Tokens generated for the longest answer of a request.",
            "request_params_max_tokens": "The limit of generated tokens that a request asked for.",
            "request_prefill_kv_computed_tokens": "Prompt tokens that were computed for a request.",
        }
        self._prompt_size, self._answer_size, self._most_size, self._asked_size, self._computed_size = (
            histogram(name, about, tokens) for name, about in sizes.items()
        )
        self._answers = histogram("request_params_n", "Answers to a prompt that were asked for.", _ANSWERS)
        self._preempted = histogram("request_num_preemptions", "How often a request was preempted.", _PREEMPTED)

    # -- events

    def take(self, event: TelemetryEvent) -> None:
        if isinstance(event, StepEvent):
            self._take_step(event)
        elif isinstance(event, RequestEvent) and event.stream is not None:
            if event.kind == "first_token":
                self._take_prompt(event.stream)
            elif event.kind == "finished":
                self._take_end(event.stream)

    def rejected(self) -> None:
        """Count a request that was refused because the queue is full."""
        self._rejected.inc()

    def look(self, unfinished: int) -> None:
        """Set the gauges of an engine with ``unfinished`` requests."""
        load = Load.after(self._last, unfinished, self._info.num_blocks - 1)
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._for_capacity.set(load.waiting)
        self._kv.set(load.kv_usage)

    def _take_step(self, event: StepEvent) -> None:
        self._last = record = event.record
        computed = record.prompt_tokens + record.decode_tokens
        if computed:
            self._step_tokens.observe(computed)
        if record.preempted:
            self._preemptions.inc(len(record.preempted))
        if record.recomputed_tokens:
            self._recomputed.inc(record.recomputed_tokens)
        if record.swapped_out or record.swapped_in:
            block_bytes = self._info.block_size * self._info.kv_bytes_per_token
            self._out.inc(record.swapped_out * block_bytes)
            self._in.inc(record.swapped_in * block_bytes)
        if event.tokens:
            self._generated.inc(len(event.tokens))
            self._itl.observe(token.itl_ns / 1e9 for token in event.tokens if token.itl_ns)  # not None, and not 0
        step = step_row(record, self._time, max_waiting=0)  # what limits it is of no interest here
        tokens = token_rows(event.tokens, self._time, record.step_id)
        usual_ms, causes = self._late.take(step, tokens)
        for place, cause in causes.items():
            if usual_ms and (itl_ms := tokens[place].itl_ms):
                self._stalled[_STALLED[cause]].observe((itl_ms - usual_ms) / 1000)
        if record.draft_tokens:
            self._take_drafts(event)

    def _take_drafts(self, event: StepEvent) -> None:
        self._drafts.inc(sum(entry.decode_tokens > 1 for entry in event.record.entries))
        self._drafted.inc(event.record.draft_tokens)
        self._accepted.inc(event.record.accepted_tokens)
        for tokens in Counts(token.request_id for token in event.tokens).values():
            for position in range(tokens - 1):  # the last token is not of the draft
                self._accepted_at.labels(**self._labels, position=str(position)).inc()

    def _take_prompt(self, stream: Stream) -> None:
        metrics = stream.metrics
        saved_tokens = metrics.saved_tokens
        self._prompt.inc(metrics.prompt_tokens)
        self._queries.inc(metrics.prompt_tokens)
        for counter in (self._cached, self._hits, self._found, self._on_device):
            counter.inc(saved_tokens)
        self._computed.inc(metrics.prompt_tokens - saved_tokens)
        _observe(self._ttft, metrics.ttft_s)
        if metrics.ttft_causes is not None:
            for histogram, seconds in zip(self._ttft_parts.values(), metrics.ttft_causes, strict=True):
                histogram.observe(seconds)
        self._computed_size.observe(metrics.prompt_tokens - saved_tokens)

    def _take_end(self, stream: Stream) -> None:
        metrics = stream.metrics
        if stream.finish_reason is not None:
            self._ended[stream.finish_reason].inc()
        _observe(self._tpot, metrics.tpot_s)
        _observe(self._e2e, metrics.e2e_s)
        _observe(self._queue, metrics.queue_s)
        if metrics.inference_s is not None:
            self._inference.observe(metrics.inference_s)
            _observe(self._prefill, metrics.prefill_s)
            _observe(self._decode, metrics.decode_s)
        self._prompt_size.observe(metrics.prompt_tokens)
        for size in (self._answer_size, self._most_size):
            size.observe(metrics.completion_tokens)
        self._asked_size.observe(stream.params.max_new_tokens)
        if metrics.answers is not None:
            self._answers.observe(metrics.answers)
        self._preempted.observe(metrics.num_preemptions)


def _observe(histogram: Any, seconds: float | None) -> None:
    if seconds is not None:
        histogram.observe(seconds)


def _one_two_five(most: int) -> Iterable[float]:
    """Returns 1, 2, 5, 10, 20 and so on up to ``most``, the bounds of vLLM's token histograms."""
    steps = (factor * 10**power for power in count() for factor in (1, 2, 5))
    return takewhile(lambda bound: bound <= most, steps)
