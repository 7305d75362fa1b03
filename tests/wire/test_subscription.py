"""Message numbers that a subscription misses or sees twice, and numbers that start over."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from roseplay.core.cache_events import Removed
from roseplay.wire.extra import zmq
from roseplay.wire.kv_publisher import KvEventPublisher
from roseplay.wire.problems import Problems
from roseplay.wire.subscription import Subscription
from tests.waiting import wait_until
from tests.wire.test_reader import Lossy, stored


def subscribed(
    lossy: Lossy, context: Any, problems: Problems, replay_endpoint: str | None = None
) -> tuple[Subscription, list[bytes | None]]:
    """A subscription that has received a message, and what it receives from then on."""
    subscription = Subscription(context, lossy.endpoint, "events", problems, replay_endpoint)
    heard: list[bytes | None] = []

    def hears() -> bool:
        lossy.send(payload=b"first")
        heard.extend(subscription.received())
        return bool(heard)

    wait_until(hears, "a first message")
    lossy.send(payload=b"last of the first")
    receive_until(subscription, heard, b"last of the first")
    heard.clear()
    return subscription, heard


def receive_until(subscription: Subscription, heard: list[bytes | None], payload: bytes) -> None:
    def arrived() -> bool:
        heard.extend(subscription.received())
        return heard[-1:] == [payload]

    wait_until(arrived, "the last message")


@contextlib.contextmanager
def answering(lossy: Lossy) -> Iterator[None]:
    """Serves replays from another thread."""
    done = threading.Event()

    def answer() -> None:
        while not done.is_set():
            lossy.publisher.serve_replays()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_messages_that_a_new_publisher_lost_are_counted_from_its_first(context: Any) -> None:
    lossy, problems = Lossy(context), Problems()
    subscription, heard = subscribed(lossy, context, problems)
    for _ in range(3):
        lossy.send(payload=b"more")
    lossy.publisher.publication.next = 0
    lossy.send(stored(1), arrives=False)
    lossy.send(payload=b"of the new one")
    receive_until(subscription, heard, b"of the new one")
    assert heard == [b"more"] * 3 + [None, b"of the new one"]
    assert problems.lost == {"events": 1}


def test_a_gap_without_a_replay_is_counted_once(context: Any) -> None:
    lossy, problems = Lossy(context), Problems()
    subscription, heard = subscribed(lossy, context, problems)
    for arrives in (False, False, True, True, False, True):
        lossy.send(payload=b"x" if arrives else b"lost", arrives=arrives)
    lossy.send(payload=b"end")
    receive_until(subscription, heard, b"end")
    assert heard == [b"x"] * 3 + [b"end"]
    assert problems.lost == {"events": 3}
    assert problems.fetched == {} and problems.skipped == {}


def test_of_a_gap_that_is_replayed_in_part_only_the_rest_is_lost(context: Any) -> None:
    lossy, problems = Lossy(context), Problems()
    subscription, heard = subscribed(lossy, context, problems, lossy.publisher.replay_endpoint)
    for number in range(4):
        lossy.send(payload=b"%d" % number, arrives=False)
    for _ in range(len(lossy.publisher.kept) - 2):
        lossy.publisher.kept.popleft()
    lossy.send(payload=b"end")
    with answering(lossy):
        receive_until(subscription, heard, b"end")
    assert heard == [b"2", b"3", b"end"]
    assert (problems.fetched, problems.lost, problems.skipped) == ({"events": 2}, {"events": 2}, {})


def test_what_has_been_replayed_is_not_taken_again_when_it_arrives(context: Any) -> None:
    lossy, problems = Lossy(context), Problems()
    subscription, heard = subscribed(lossy, context, problems, lossy.publisher.replay_endpoint)
    for payload in (b"a", b"b"):
        lossy.send(payload=payload)
    with answering(lossy):
        assert list(subscription.history())[-2:] == [b"a", b"b"]
    lossy.send(payload=b"end")
    receive_until(subscription, heard, b"end")
    assert heard == [b"end"]
    assert problems.lines() == []


def ipv6_is_here() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as free:
        free.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not ipv6_is_here(), reason="needs an address of IPv6")
def test_messages_come_over_ipv6(context: Any) -> None:
    publisher = KvEventPublisher(context, "tcp://[::1]:*", "tcp://[::1]:*", block_size=2)
    problems = Problems()
    endpoint = publisher.publication.endpoint
    subscription = Subscription(context, endpoint, "events", problems, publisher.replay_endpoint)
    heard: list[bytes | None] = []

    def hears() -> bool:
        publisher.publish([Removed(1)])
        heard.extend(subscription.received())
        return bool(heard)

    wait_until(hears, "a first message")
    assert problems.lines() == []


def test_a_replay_may_leave_out_the_empty_frame(context: Any) -> None:
    replay = context.socket(zmq.ROUTER)
    replay.bind("tcp://127.0.0.1:*")
    publisher = KvEventPublisher(context, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", block_size=2)
    endpoint, problems = publisher.publication.endpoint, Problems()
    subscription = Subscription(context, endpoint, "events", problems, replay.last_endpoint.decode())
    found: list[bytes] = []
    asking = threading.Thread(target=lambda: found.extend(subscription.history()))
    asking.start()
    client, empty, number = replay.recv_multipart()
    assert (empty, number) == (b"", bytes(8))
    for frames in ([bytes(7) + b"\x00", b"first"], [b"", bytes(7) + b"\x01", b"second"], [b"odd"]):
        replay.send_multipart([client, *frames])
    replay.send_multipart([client, b"\xff" * 8, b""])
    asking.join(30)
    assert found == [b"first", b"second"]
    assert problems.skipped == {"events: a message in a replay that is not number and payload": 1}
