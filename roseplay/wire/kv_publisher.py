"""Publishes changes of the prefix cache as KV events, and replays recent ones on request."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from roseplay.core.cache_events import CacheEvent, Cleared, Removed, Stored
from roseplay.wire.extra import zmq
from roseplay.wire.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, KvEventBatch, encode_kv_events
from roseplay.wire.sockets import SEQUENCE_BYTES, Publication, bound_socket, sequence_bytes

KEPT_BATCHES = 10_000
END = -1  # the sequence number that ends a replay
MEDIUM = "GPU"  # vLLM's name for the memory that the model computes in; routers expect it
_REPLAYS_AT_ONCE = 4  # answered before publishing continues; a slow client's queue holds as many
_REPLAY_SHARE = 0.2  # the most of the publishing thread's time to spend on replays
_UNSIGNED = 2**64 - 1


class KvEventPublisher:
    """A PUB socket for batches of events, and a ROUTER socket that replays kept ones. Used by one thread at a time.

    A client of the second socket sends an empty frame and the number of the first batch that it wants. It gets a
    message for each kept batch from there on (an empty frame, the number, the batch), and finally one numbered -1.

    Args:
        endpoint, replay_endpoint: where to listen.
        block_size: tokens per KV block.
        array_like: write arrays as older versions do.
        keep: number of the newest batches kept for replays.
        now_s: the time in seconds.

    Attributes:
        kept: the newest batches with their numbers.
    """

    def __init__(
        self,
        context: Any,
        endpoint: str,
        replay_endpoint: str,
        *,
        block_size: int,
        array_like: bool = False,
        keep: int = KEPT_BATCHES,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.publication = Publication(context, endpoint)
        self._replay = bound_socket(context, zmq.ROUTER, replay_endpoint, _REPLAYS_AT_ONCE * (keep + 1))
        self.replay_endpoint: str = self._replay.last_endpoint.decode()
        self._block_size = block_size
        self._array_like = array_like
        self.kept: deque[tuple[int, bytes]] = deque(maxlen=keep)
        self._now_s, self._replays_from = now_s, 0.0  # replay requests wait until then

    def publish(self, events: Iterable[CacheEvent]) -> None:
        """Publish the changes of one step, if there are any."""
        found = kv_events_of(events, self._block_size)
        if found:
            batch = KvEventBatch(time.time(), found, 0)
            payload = encode_kv_events(batch, array_like=self._array_like)
            self.kept.append((self.publication.send(payload), payload))

    def serve_replays(self) -> int:
        """Answer some pending requests, dropping invalid ones; returns how many. The rest wait for a later call."""
        begun = self._now_s()
        if begun < self._replays_from:
            return 0
        served = 0
        while served < _REPLAYS_AT_ONCE and self._replay.poll(0):
            client, *request = self._replay.recv_multipart()
            served += 1
            if len(request) == 2 and not request[0] and len(request[1]) == SEQUENCE_BYTES:
                self._send_again(client, int.from_bytes(request[1], "big"))
        now = self._now_s()
        self._replays_from = now + (now - begun) * (1 / _REPLAY_SHARE - 1)
        return served

    def _send_again(self, client: bytes, start: int) -> None:
        for number, payload in (*((at, kept) for at, kept in self.kept if at >= start), (END, b"")):
            self._replay.send_multipart([client, b"", sequence_bytes(number), payload], zmq.NOBLOCK)


def kv_events_of(events: Iterable[CacheEvent], block_size: int) -> list[KvEvent]:
    """Returns the events in the common format, with unsigned hashes. Merges adjacent events that store consecutive
    blocks of a prompt, or that remove blocks."""
    found: list[KvEvent] = []
    for run in _runs(list(events)):
        first = run[0]
        if isinstance(first, Stored):
            parent = None if first.parent_hash is None else first.parent_hash & _UNSIGNED
            tokens = [token for event in run if isinstance(event, Stored) for token in event.token_ids]
            found.append(BlockStored(_hashes(run), parent, [*tokens], block_size, None, MEDIUM, None))
        elif isinstance(first, Removed):
            found.append(BlockRemoved(_hashes(run), MEDIUM))
        else:
            found.append(AllBlocksCleared())
    return found


def _runs(events: list[CacheEvent]) -> list[list[CacheEvent]]:
    """Returns the events in runs of those that can be merged into one."""
    runs: list[list[CacheEvent]] = [[event] for event in events[:1]]
    for before, event in pairwise(events):
        follows = isinstance(event, Stored) and isinstance(before, Stored) and event.parent_hash == before.block_hash
        if follows or (isinstance(event, Removed) and isinstance(before, Removed)):
            runs[-1].append(event)
        else:
            runs.append([event])
    return runs


def _hashes(events: Iterable[CacheEvent]) -> list[int | bytes]:
    return [event.block_hash & _UNSIGNED for event in events if not isinstance(event, Cleared)]
