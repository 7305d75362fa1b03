"""Which prefix cache events are published as one, and how messages are numbered."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay.core.cache_events import Cleared, Removed, Stored
from roseplay.wire.extra import zmq
from roseplay.wire.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from roseplay.wire.kv_publisher import MEDIUM, KvEventPublisher, kv_events_of
from roseplay.wire.problems import MOST_REASONS, Problems
from roseplay.wire.sockets import endpoint_of, sequence_bytes
from tests.waiting import wait_until
from tests.wire.common import TIMEOUT_S

LOOPBACK = "tcp://127.0.0.1:*"


def stored(hashes: list[int], parent: int | None, tokens: list[int]) -> BlockStored:
    return BlockStored(list(hashes), parent, list(tokens), 2, None, MEDIUM, None)


def test_neighbours_of_one_kind_are_one_event() -> None:
    events = [
        *(Cleared(), Cleared()),
        *(Stored(1, None, (1, 2)), Stored(-1, 1, (3, 4)), Stored(5, -1, (5, 6)), Stored(6, -1, (7, 8))),
        *(Removed(-1), Removed(5), Stored(7, 5, (9, 9)), Removed(7)),
    ]
    assert kv_events_of(events, 2) == [
        *(AllBlocksCleared(), AllBlocksCleared()),
        stored([1, 2**64 - 1, 5], None, [1, 2, 3, 4, 5, 6]),
        stored([6], 2**64 - 1, [7, 8]),
        BlockRemoved([2**64 - 1, 5], MEDIUM),
        stored([7], 5, [9, 9]),
        BlockRemoved([7], MEDIUM),
    ]
    assert kv_events_of([], 2) == []


def test_a_step_that_changes_nothing_is_no_batch(context: Any) -> None:
    publisher = KvEventPublisher(context, LOOPBACK, LOOPBACK, block_size=2)
    publisher.publish([])
    assert publisher.publication.next == 0
    publisher.publish([Removed(1)])
    publisher.publication.skip()
    assert publisher.publication.next == 2


@pytest.mark.parametrize(
    ("host", "port", "endpoint"),
    [
        ("127.0.0.1", 5557, "tcp://127.0.0.1:5557"),
        ("127.0.0.1", 0, "tcp://127.0.0.1:*"),
        ("::1", 1, "tcp://[::1]:1"),
    ],
)
def test_endpoints(host: str, port: int, endpoint: str) -> None:
    assert endpoint_of(host, port) == endpoint


def test_numbers_are_eight_bytes_the_end_of_a_replay_with_a_sign() -> None:
    assert (sequence_bytes(258), sequence_bytes(-1)) == (b"\0\0\0\0\0\0\x01\x02", b"\xff" * 8)
    assert sequence_bytes(2**63) == b"\x80" + b"\0" * 7
    assert sequence_bytes(0) == b"\0" * 8


def test_reasons_beyond_so_many_are_counted_together() -> None:
    problems = Problems()
    for number in range(MOST_REASONS + 2):
        problems.skip(f"reason {number}", 2)
    problems.skip("reason 0")
    problems.lost["events"], problems.fetched["events"] = 1234, 5
    lines = problems.lines()
    assert lines[:4] == [
        "1,234 messages of events were lost",
        "5 missed messages of events were sent again",
        "skipped 4 × something else",
        "skipped 3 × reason 0",
    ]
    assert len(lines) == 2 + MOST_REASONS + 1


def test_malformed_requests_for_replays_are_ignored(context: Any) -> None:
    publisher = KvEventPublisher(context, LOOPBACK, LOOPBACK, block_size=2)
    publisher.publish([Removed(1)])
    client = context.socket(zmq.DEALER)
    client.rcvtimeo = int(1000 * TIMEOUT_S)
    client.connect(publisher.replay_endpoint)
    for rubbish in ([b"x"], [b"", b"x"], [b"x", bytes(8)], [b"", b"", b""], [b"", bytes(8), b""], [b"", bytes(9)]):
        client.send_multipart(rubbish)
    client.send_multipart([b"", sequence_bytes(0)])

    def answered() -> bool:
        publisher.serve_replays()
        return bool(client.poll(0))

    wait_until(answered, "the request is answered")
    assert [client.recv_multipart()[:2] for _ in range(2)] == [[b"", sequence_bytes(0)], [b"", sequence_bytes(-1)]]
    publisher.serve_replays()
    assert not client.poll(0)
