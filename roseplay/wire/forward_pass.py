"""Forward pass metrics, version 1, as vLLM, SGLang and Dynamo publish them: sums of what each step computed.

A message is a msgpack map; Dynamo's trace files hold the same as JSON. Readers ignore unknown fields.
"""

from __future__ import annotations

from typing import Annotated, Any

from roseplay.wire.extra import WireError, msgspec
from roseplay.wire.kv_events import converted, unpack

VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]  # the most that a column of a recording holds
Sum = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Variance = Annotated[float, msgspec.Meta(ge=0, le=1e300)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class ScheduledRequests(msgspec.Struct, frozen=True):
    """The requests of a step. Variances are population variances.

    Attributes:
        sum_prefill_tokens: prompt tokens computed.
        var_prefill_length: variance of whole prompts' lengths.
        sum_prefill_kv_tokens: tokens of these prompts that were computed before: cached ones and earlier chunks.
        sum_decode_kv_tokens: tokens of context that decodes read.
    """

    num_prefill_requests: Count = 0
    sum_prefill_tokens: Count = 0
    var_prefill_length: Variance = 0.0
    sum_prefill_kv_tokens: Sum = 0
    num_decode_requests: Count = 0
    sum_decode_kv_tokens: Sum = 0
    var_decode_kv_tokens: Variance = 0.0


class QueuedRequests(msgspec.Struct, frozen=True):
    """The requests that wait after a step: new ones count as prefills, preempted ones as decodes."""

    num_prefill_requests: Count = 0
    sum_prefill_tokens: Sum = 0
    var_prefill_length: Variance = 0.0
    num_decode_requests: Count = 0
    sum_decode_kv_tokens: Sum = 0
    var_decode_kv_tokens: Variance = 0.0


class ForwardPassMetrics(msgspec.Struct, frozen=True):
    """One step, or, if empty, a heartbeat of an idle engine.

    Attributes:
        counter_id: sequence number of the engine's messages.
        timing_scope: what ``wall_time`` measures.
        wall_time: seconds.
    """

    version: int = VERSION
    worker_id: str = ""
    dp_rank: Count = 0
    counter_id: Sum = 0
    timing_scope: str = ""
    wall_time: Seconds = 0.0
    scheduled_requests: ScheduledRequests = ScheduledRequests()
    queued_requests: QueuedRequests = QueuedRequests()

    @property
    def is_heartbeat(self) -> bool:
        return self.wall_time == 0 and self.scheduled_requests == ScheduledRequests()


_encoder = msgspec.msgpack.Encoder()


def encode_forward_pass(metrics: ForwardPassMetrics) -> bytes:
    """Returns the metrics as a msgpack message."""
    return _encoder.encode(metrics)


def decode_forward_pass(payload: bytes) -> ForwardPassMetrics:
    """Returns the metrics of a message; raises ``WireError`` for anything else and for other versions."""
    return forward_pass_of(unpack(payload))


def forward_pass_of(value: Any) -> ForwardPassMetrics:
    """Returns the metrics of a decoded map; raises ``WireError`` for anything else and for other versions."""
    if not isinstance(value, dict) or "version" not in value:
        raise WireError("forward pass metrics are not a map with a version")
    if value["version"] != VERSION:
        raise WireError(f"forward pass metrics of version {str(value['version'])[:20]}, not {VERSION}")
    metrics: ForwardPassMetrics = converted(value, ForwardPassMetrics)
    return metrics
