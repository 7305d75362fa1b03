"""The messages of other engines: bytes written by hand, in both directions, and arbitrary other input."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roseplay.wire.extra import WireError
from roseplay.wire.forward_pass import (
    ForwardPassMetrics,
    QueuedRequests,
    ScheduledRequests,
    decode_forward_pass,
    encode_forward_pass,
)
from roseplay.wire.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEventBatch,
    decode_kv_events,
    encode_kv_events,
)


def message(*parts: str | bytes) -> bytes:
    """Bytes from hex and from texts, which are encoded as msgpack's short strings."""
    return b"".join(
        bytes.fromhex(part) if isinstance(part, str) else bytes([0xA0 + len(part)]) + part for part in parts
    )


STORED = BlockStored([7, 2**63 + 5], None, [1, 2, 300, 70000], 2, None, "GPU", None)
REMOVED = BlockRemoved([b"\xde\xad"], "GPU", 1)
BATCH = KvEventBatch(1.5, [STORED, REMOVED, AllBlocksCleared()], 0)

AS_MAPS = message(
    "83",  # a map of three
    b"ts", "cb 3ff8000000000000",  # a double, 1.5
    b"events", "93",  # an array of three
    "88",  # a map of eight
    b"type", b"BlockStored",
    b"block_hashes", "92 07 cf 8000000000000005",  # a small integer, and one of 64 bits without a sign
    b"parent_block_hash", "c0",  # nil
    b"token_ids", "94 01 02 cd 012c ce 00011170",  # integers of growing width
    b"block_size", "02",
    b"lora_id", "c0",
    b"medium", b"GPU",
    b"lora_name", "c0",  # the remaining fields have their defaults and are left out
    "84",
    b"type", b"BlockRemoved",
    b"block_hashes", "91 c4 02 dead",  # two bytes
    b"medium", b"GPU",
    b"group_idx", "01",
    "81",
    b"type", b"AllBlocksCleared",
    b"data_parallel_rank", "00",
)  # fmt: skip
AS_ARRAYS = message(
    "93",  # an array of three: time, events, rank
    "cb 3ff8000000000000",
    "93",
    "9c",  # an array of twelve, the event's name first
    b"BlockStored",
    "92 07 cf 8000000000000005",  # hashes
    "c0",  # parent
    "94 01 02 cd 012c ce 00011170",  # tokens
    "02",  # block size
    "c0", b"GPU", "c0",  # LoRA's id, medium, LoRA's name
    "c0 c0 c0 c0",  # extra keys, group, kind of cache, window
    "94", b"BlockRemoved", "91 c4 02 dead", b"GPU", "01",
    "91", b"AllBlocksCleared",
    "00",
)  # fmt: skip
# The first versions: no rank, no medium, no LoRA name.
FIRST_ARRAYS = message(
    "92", "cb 3ff8000000000000",
    "92", "96", b"BlockStored", "91 2a", "29", "92 01 02", "02", "c0",
    "92", b"BlockRemoved", "91 29",
)  # fmt: skip
# In between: the batch is an array, its events are maps, one of them with a field of the future.
MIXED = message(
    "93", "cb 3ff8000000000000",
    "91", "84", b"type", b"BlockRemoved", b"block_hashes", "91 09", b"medium", "c0", b"ownership", b"somebody",
    "c0",
)  # fmt: skip


@pytest.mark.parametrize(("written", "array_like"), [(AS_MAPS, False), (AS_ARRAYS, True)])
def test_both_encodings_of_kv_events(written: bytes, array_like: bool) -> None:
    assert decode_kv_events(written) == (BATCH, [])
    assert encode_kv_events(BATCH, array_like=array_like) == written


def test_kv_events_of_the_first_versions_and_of_those_in_between() -> None:
    stored = BlockStored([42], 41, [1, 2], 2, None, None, None)
    assert decode_kv_events(FIRST_ARRAYS) == (KvEventBatch(1.5, [stored, BlockRemoved([41], None)]), [])
    assert decode_kv_events(MIXED) == (KvEventBatch(1.5, [BlockRemoved([9], None)]), [])


def test_an_array_may_be_longer_than_is_known() -> None:
    event = ["BlockRemoved", [9], "GPU", None, "local", {"more": 1}]
    batch = msgspec.msgpack.encode([1.5, [event], None, "a field of the future"])
    assert decode_kv_events(batch) == (KvEventBatch(1.5, [BlockRemoved([9], "GPU")]), [])


def test_tokens_may_be_pairs() -> None:
    event = ["BlockStored", [9], None, [[1, 2], [2, 3]], 2, None]
    (stored,) = decode_kv_events(msgspec.msgpack.encode([1.5, [event]])).batch.events
    assert stored == BlockStored([9], None, [(1, 2), (2, 3)], 2, None, None, None)


def test_an_event_that_cannot_be_read_does_not_spoil_the_others() -> None:
    events: list[Any] = [
        ["BlockMoved", 1], {"type": "BlockRemoved"}, ["BlockRemoved", "everything"], 5, {}, [], ["AllBlocksCleared"],
    ]  # fmt: skip
    batch, skipped = decode_kv_events(msgspec.msgpack.encode([1.5, events]))
    assert batch.events == [AllBlocksCleared()]
    assert len(skipped) == len(events) - 1
    assert "unknown KV event 'BlockMoved'" in skipped
    assert "BlockRemoved: Object missing required field `block_hashes`" in skipped


few = settings(max_examples=40)
hashes = st.lists(st.one_of(st.integers(-(2**63), 2**64 - 1), st.binary(max_size=32)), max_size=4)
texts = st.none() | st.text(max_size=5)
numbers = st.none() | st.integers(0, 2**40)
tokens = st.lists(st.one_of(st.integers(0, 2**31), st.tuples(st.integers(0, 9), st.integers(0, 9))), max_size=8)
stored_events = st.builds(
    BlockStored,
    *(hashes, st.none() | st.integers(0, 2**64 - 1) | st.binary(max_size=8), tokens, st.integers(1, 2**16)),
    *(numbers, texts, texts, st.none(), numbers, texts, numbers),
)
removed_events = st.builds(BlockRemoved, hashes, texts, numbers)
batches = st.builds(
    KvEventBatch,
    st.floats(0, 1e12),
    st.lists(st.one_of(stored_events, removed_events, st.just(AllBlocksCleared())), max_size=4),
    numbers,
)


@few
@given(batches, st.booleans())
def test_kv_events_survive_the_way(batch: KvEventBatch, array_like: bool) -> None:
    assert decode_kv_events(encode_kv_events(batch, array_like=array_like)) == (batch, [])


SCHEDULED = ScheduledRequests(2, 256, 100.0, 64, 3, 1024, 50.0)
METRICS = ForwardPassMetrics(1, "4192", 0, 42, "execute_model_cuda", 0.025, SCHEDULED, QueuedRequests(1, 128))
FORWARD_PASS = message(
    "88",
    b"version", "01",
    b"worker_id", b"4192",
    b"dp_rank", "00",
    b"counter_id", "2a",
    b"timing_scope", b"execute_model_cuda",
    b"wall_time", "cb 3f9999999999999a",  # 0.025
    b"scheduled_requests", "87",
    b"num_prefill_requests", "02",
    b"sum_prefill_tokens", "cd 0100",
    b"var_prefill_length", "cb 4059000000000000",  # 100.0
    b"sum_prefill_kv_tokens", "40",
    b"num_decode_requests", "03",
    b"sum_decode_kv_tokens", "cd 0400",
    b"var_decode_kv_tokens", "cb 4049000000000000",  # 50.0
    b"queued_requests", "86",
    b"num_prefill_requests", "01",
    b"sum_prefill_tokens", "cc 80",
    b"var_prefill_length", "cb 0000000000000000",
    b"num_decode_requests", "00",
    b"sum_decode_kv_tokens", "00",
    b"var_decode_kv_tokens", "cb 0000000000000000",
)  # fmt: skip


def test_forward_pass_metrics() -> None:
    assert decode_forward_pass(FORWARD_PASS) == METRICS
    assert encode_forward_pass(METRICS) == FORWARD_PASS
    assert not METRICS.is_heartbeat
    assert ForwardPassMetrics(worker_id="x", counter_id=9).is_heartbeat


def test_forward_pass_metrics_without_a_timing_scope_and_with_unknown_fields() -> None:
    sent = {**msgspec.to_builtins(METRICS), "of_the_future": [1]}
    del sent["timing_scope"]
    assert decode_forward_pass(msgspec.msgpack.encode(sent)) == msgspec.structs.replace(METRICS, timing_scope="")


counts = st.integers(0, 2**31 - 1)
variances = st.floats(0, 1e300)
scheduled_requests = st.builds(ScheduledRequests, counts, counts, variances, counts, counts, counts, variances)
queued_requests = st.builds(QueuedRequests, counts, counts, variances, counts, counts, variances)
walls = st.floats(0, 1e6)
some_metrics = st.builds(
    ForwardPassMetrics, st.just(1), st.text(), counts, counts, st.text(), walls, scheduled_requests, queued_requests
)


@few
@given(some_metrics)
def test_forward_pass_metrics_survive_the_way(metrics: ForwardPassMetrics) -> None:
    assert decode_forward_pass(encode_forward_pass(metrics)) == metrics


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ({"ts": 1.0, "events": []}, "not a map with a version"),
        ([1, 2], "not a map with a version"),
        ({"version": 2}, "version 2, not 1"),
        ({"version": 1, "wall_time": -1.0}, r">= 0\.0"),
        ({"version": 1, "wall_time": float("nan")}, "wall_time"),
        ({"version": 1, "wall_time": float("inf")}, "wall_time"),
        ({"version": 1, "scheduled_requests": {"num_decode_requests": 2**40}}, "num_decode_requests"),
        ({"version": 1, "scheduled_requests": []}, "scheduled_requests"),
    ],
)
def test_forward_pass_metrics_that_are_refused(sent: Any, why: str) -> None:
    with pytest.raises(WireError, match=why):
        decode_forward_pass(msgspec.msgpack.encode(sent))


@given(
    st.binary(max_size=200)
    | st.builds(lambda payload, at, byte: payload[:at] + byte + payload[at + 1 :],
                st.sampled_from([AS_MAPS, AS_ARRAYS, FORWARD_PASS]), st.integers(0, 300), st.binary(max_size=2))
    | st.just(b"\x91" * 100_000)
)  # fmt: skip
def test_whatever_arrives_is_read_or_refused(payload: bytes) -> None:
    for decode in (decode_kv_events, decode_forward_pass):
        try:
            decode(payload)
        except WireError as error:
            assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (5, "a KV event batch is neither an array nor a map"),
        ([1.5], "a KV event batch has no list of events"),
        ({"ts": 1.5, "events": {}}, "a KV event batch has no list of events"),
        (["now", []], "KvEventBatch: Expected `float`, got `str`"),
    ],
)
def test_batches_that_are_refused(sent: Any, why: str) -> None:
    with pytest.raises(WireError, match=why):
        decode_kv_events(msgspec.msgpack.encode(sent))


def test_what_is_no_msgpack_is_said_to_be_none() -> None:
    for decode in (decode_kv_events, decode_forward_pass):
        with pytest.raises(WireError, match="a message is not msgpack"):
            decode(b"\xc1")
