"""What a real engine publishes over real sockets, compared with its own step records."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from roseplay.config import EngineConfig
from roseplay.core.cache_events import Stored
from roseplay.engine.client import Engine
from roseplay.engine.records import EntryRecord
from roseplay.engine.telemetry import StepEvent, Telemetry
from roseplay.wire.extra import zmq
from roseplay.wire.forward_pass import ForwardPassMetrics, decode_forward_pass
from roseplay.wire.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, decode_kv_events
from roseplay.wire.kv_publisher import KvEventPublisher
from roseplay.wire.publishers import Publishers
from tests.core.invariants import CacheTree
from tests.play.fake_engine import FakeEngine
from tests.waiting import wait_until
from tests.wire.common import TIMEOUT_S, batches, blank, records, traffic


class Subscriber:
    """Collects the messages of one endpoint, by number."""

    def __init__(self, context: Any, endpoint: str) -> None:
        self._socket = context.socket(zmq.SUB)
        self._socket.rcvtimeo = int(1000 * TIMEOUT_S)
        self._socket.subscribe(b"")
        self._socket.connect(endpoint)
        self.messages: list[tuple[int, bytes]] = []

    def next(self) -> bytes:
        topic, number, payload = self._socket.recv_multipart()
        assert topic == b""
        assert len(number) == 8
        self.messages.append((int.from_bytes(number, "big"), payload))
        return payload


def replayed(
    context: Any, endpoint: str, start: int, serve: Callable[[], object] = lambda: None
) -> Iterator[tuple[int, bytes]]:
    """What is sent again from this number on; ``serve`` is called until it comes."""
    client = context.socket(zmq.DEALER)
    client.rcvtimeo = int(1000 * TIMEOUT_S)
    client.connect(endpoint)
    client.send_multipart([b"", start.to_bytes(8, "big")])
    wait_until(lambda: serve() or client.poll(0), "an answer")
    while True:
        empty, number, payload = client.recv_multipart()
        assert empty == b""
        if number == b"\xff" * 8:
            assert payload == b""
            return
        yield int.from_bytes(number, "big"), payload


def contents(events: list[Any], block_size: int) -> dict[Any, tuple[Any, tuple[int, ...]]]:
    """What is cached after these events: by hash, the parent's hash and the tokens."""
    cached: dict[Any, tuple[Any, tuple[int, ...]]] = {}
    for event in events:
        if isinstance(event, BlockStored):
            assert event.block_size == block_size
            assert len(event.token_ids) == block_size * len(event.block_hashes)
            parent = event.parent_block_hash
            for index, block_hash in enumerate(event.block_hashes):
                tokens = tuple(event.token_ids[index * block_size : (index + 1) * block_size])
                cached[block_hash] = parent, tokens
                parent = block_hash
        elif isinstance(event, BlockRemoved):
            for block_hash in event.block_hashes:
                del cached[block_hash]
        else:
            assert isinstance(event, AllBlocksCleared)
            cached.clear()
    return cached


def test_kv_events_add_up_to_what_is_cached(engine: Engine, context: Any) -> None:
    with Publishers(engine, kv_events_port=0, array_like=True) as publishers:
        traffic(engine)
        last = records(engine)[-1]
        wait_until(lambda: publishers.kv.publication.next == batches(engine), "all is published")
        messages = list(replayed(context, publishers.kv.replay_endpoint, 0))
    assert [number for number, _ in messages] == list(range(publishers.kv.publication.next))
    events = []
    for _, payload in messages:
        assert isinstance(msgspec.msgpack.decode(payload), list)
        batch, skipped = decode_kv_events(payload)
        assert not skipped
        assert abs(batch.ts - time.time()) < 60
        events += batch.events
    assert events[0] == AllBlocksCleared()
    assert any(isinstance(event, BlockRemoved) for event in events)
    tree = CacheTree()
    for event in (event for record in records(engine) for event in record.cache_events):
        tree.apply(event)
    expected = tree.stored
    unsigned = 2**64 - 1
    assert contents(events, 4) == {
        block_hash & unsigned: (None if parent is None else parent & unsigned, tokens)
        for block_hash, parent, tokens in expected.values()
    }
    findable = {}
    for record in records(engine):
        findable.update({change.block: change.findable for change in record.block_changes})
    assert 0 < len(expected) <= sum(findable.values()) == last.blocks_cached
    assert publishers.dropped == 0


def test_a_cleared_cache_is_published(engine: Engine, context: Any) -> None:
    with Publishers(engine, kv_events_port=0) as publishers:
        subscriber = Subscriber(context, publishers.kv.publication.endpoint)
        traffic(engine, 2)
        engine.clear_cache()
        while decode_kv_events(payload := subscriber.next()).batch.events != [AllBlocksCleared()]:
            assert isinstance(msgspec.msgpack.decode(payload), dict)
        numbers = [number for number, _ in subscriber.messages]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_an_idle_engine_shows_signs_of_life_and_all_messages_are_numbered(fake: FakeEngine, context: Any) -> None:
    with Publishers(fake, forward_pass_port=0, worker_id="w") as publishers:
        subscriber = Subscriber(context, publishers.forward_pass.publication.endpoint)
        first = decode_forward_pass(subscriber.next())
        assert first == ForwardPassMetrics(worker_id="w", counter_id=0)
        for waiting in (1, 2):
            entries = [EntryRecord(waiting, 8, 0, 8, 8, 0, 0)]
            fake.telemetry.add(StepEvent(blank(entries=entries, prompt_tokens=8, waiting=waiting), []))
        steps = [decode_forward_pass(subscriber.next()) for _ in range(2)]
    assert [number for number, _ in subscriber.messages] == [0, 1, 2]
    assert [metrics.counter_id for metrics in steps] == [1, 2]
    assert [metrics.queued_requests.num_prefill_requests for metrics in steps] == [1, 2]
    assert {(metrics.worker_id, metrics.timing_scope) for metrics in steps} == {("w", "execute_model_cpu")}


def test_a_subscriber_that_never_reads_holds_up_nobody(engine: Engine, context: Any) -> None:
    """It also keeps asking for replays without reading the replies."""
    with Publishers(engine, kv_events_port=0, forward_pass_port=0) as publishers:
        for endpoint in (publishers.kv.publication.endpoint, publishers.forward_pass.publication.endpoint):
            deaf = context.socket(zmq.SUB)
            deaf.rcvhwm = 1
            deaf.subscribe(b"")
            deaf.connect(endpoint)
        asking = context.socket(zmq.DEALER)
        asking.rcvhwm = 1
        asking.connect(publishers.kv.replay_endpoint)
        for _ in range(200):
            asking.send_multipart([b"", bytes(8)])
        for rubbish in ([b"x"], [b"", b"x"], [b"", b"", b""]):
            asking.send_multipart(rubbish)
        traffic(engine, 30)
        reader = Subscriber(context, publishers.forward_pass.publication.endpoint)
        assert reader.next()
        begun = time.monotonic()
    assert time.monotonic() - begun < 3, "the rest is published, and the thread has ended"
    assert publishers.forward_pass.publication.next > 30


def stored(block_hash: Any) -> StepEvent:
    return StepEvent(blank(cache_events=[Stored(block_hash, None, (1, 2, 3, 4))]), [])


def test_what_the_telemetry_has_dropped_is_counted_and_leaves_a_gap(fake: FakeEngine) -> None:
    fake.telemetry = Telemetry(capacity=4)
    for number in range(10):
        fake.telemetry.add(stored(number))
    with Publishers(fake, kv_events_port=0, forward_pass_port=0) as publishers:
        wait_until(lambda: publishers.dropped, "a first look, before the last one")
    assert publishers.dropped == 6
    assert publishers.kv.publication.next == 5
    assert [number for number, _ in publishers.kv.kept] == [1, 2, 3, 4]


def test_an_event_that_cannot_be_published_leaves_a_gap_and_the_others_are(fake: FakeEngine) -> None:
    for number in (1, "no hash", 3):
        fake.telemetry.add(stored(number))
    with Publishers(fake, kv_events_port=0) as publishers:
        pass
    assert publishers.dropped == 1
    assert [number for number, _ in publishers.kv.kept] == [0, 2]


def test_steps_from_before_are_not_published(fake: FakeEngine) -> None:
    """A planner would take these old steps for the current load. Blocks that they stored may still be cached."""
    count = 1000
    for _ in range(count):
        fake.telemetry.add(StepEvent(blank(entries=[EntryRecord(1, 8, 0, 8, 8, 0, 0)]), []))
    with Publishers(fake, forward_pass_port=0) as publishers:
        pass
    assert publishers.forward_pass.publication.next < count  # only heartbeats, one per second


def test_events_do_not_wait_for_a_flood_of_replays(context: Any) -> None:
    """Each call serves only a few requests, so that the thread returns to its events."""
    publisher = KvEventPublisher(context, "tcp://127.0.0.1:*", "inproc://replays", block_size=4)
    publisher.publish([Stored(1, None, (1, 2, 3, 4))])
    asking = context.socket(zmq.DEALER)
    asking.connect("inproc://replays")
    for _ in range(50):
        asking.send_multipart([b"", bytes(8)])  # inproc: the message has arrived once this returns
    answered = [publisher.serve_replays()]
    wait_until(lambda: answered.append(publisher.serve_replays()) or sum(answered) == 50, "all are answered")
    assert 0 < max(answered) <= 10
    for number in [0, -1] * 50:
        assert asking.recv_multipart()[1] == number.to_bytes(8, "big", signed=True)


def test_after_a_slow_replay_the_next_one_waits_until_it_was_a_fifth_of_the_time(context: Any) -> None:
    times = iter([100.0, 102.0, 102.0, 109.9, 110.0, 110.0])  # the first replay takes 2 s
    publisher = KvEventPublisher(context, "tcp://127.0.0.1:*", "inproc://replays", block_size=4, now_s=times.__next__)
    asking = context.socket(zmq.DEALER)
    asking.connect("inproc://replays")
    asking.send_multipart([b"", bytes(8)])
    assert publisher.serve_replays() == 1
    asking.send_multipart([b"", bytes(8)])
    assert [publisher.serve_replays() for _ in range(3)] == [0, 0, 1]


def test_who_sends_a_huge_frame_is_disconnected(context: Any) -> None:
    """In ZMTP 3.0: the greeting, the handshake, and the header of a frame of 1 MiB."""
    publisher = KvEventPublisher(context, *["tcp://127.0.0.1:*"] * 2, block_size=4)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    huge = b"\x02" + (1 << 20).to_bytes(8, "big")
    for endpoint, kind in ((publisher.replay_endpoint, b"DEALER"), (publisher.publication.endpoint, b"SUB")):
        host, port = endpoint.removeprefix("tcp://").split(":")
        ready = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
        with socket.create_connection((host, int(port)), TIMEOUT_S) as client:
            client.sendall(greeting + b"\x04" + bytes([len(ready)]) + ready + huge)
            while client.recv(4096):  # until it is closed
                pass


def test_only_the_newest_batches_can_be_asked_for_again(context: Any) -> None:
    publisher = KvEventPublisher(context, *["tcp://127.0.0.1:*"] * 2, block_size=4, keep=3)
    for number in range(7):
        publisher.publish([Stored(number, None, (1, 2, 3, 4))])
    for start, numbers in ((5, [5, 6]), (2**64 - 1, []), (0, [4, 5, 6])):
        answer = replayed(context, publisher.replay_endpoint, start, publisher.serve_replays)
        assert [number for number, _ in answer] == numbers


def test_what_cannot_be_published_is_said_in_one_line(fake: FakeEngine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match=r"cannot listen at .*: Address already in use"):
            Publishers(fake, forward_pass_port=taken.getsockname()[1])
    fake.config = EngineConfig(kv_events=False)
    with pytest.raises(ValueError, match="kv_events=True"):
        Publishers(fake, kv_events_port=0)


def test_only_this_machine_can_subscribe_unless_told_otherwise(fake: FakeEngine) -> None:
    with Publishers(fake, kv_events_port=0, forward_pass_port=0) as publishers:
        endpoints = [publishers.kv.publication.endpoint, publishers.kv.replay_endpoint]
        endpoints.append(publishers.forward_pass.publication.endpoint)
        assert all(endpoint.startswith("tcp://127.0.0.1:") for endpoint in endpoints)
        publishers.close()
        publishers.close()


def two_free_ports() -> int:
    """A free port whose successor is free, too."""
    for _ in range(100):
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                other.bind(("127.0.0.1", port + 1))
                return port
    raise AssertionError("no two free ports")


def test_replays_are_at_the_next_port_unless_told_otherwise(fake: FakeEngine) -> None:
    port = two_free_ports()
    with Publishers(fake, kv_events_port=port) as publishers:
        assert publishers.kv.publication.endpoint == f"tcp://127.0.0.1:{port}"
        assert publishers.kv.replay_endpoint == f"tcp://127.0.0.1:{port + 1}"
    other = two_free_ports()
    with Publishers(fake, kv_events_port=0, kv_replay_port=other) as publishers:
        assert publishers.kv.replay_endpoint == f"tcp://127.0.0.1:{other}"
