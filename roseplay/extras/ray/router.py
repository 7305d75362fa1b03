"""A request router for Ray Serve that sends each request to the replica that holds the longest prefix of its prompt."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from roseplay.core.cache_events import block_hashes
from roseplay.extras.ray.resident_blocks import unpack
from roseplay.extras.ray.routing import Candidate, leading, ranked

SENT_S = 30.0  # how long a prompt counts as resident where it was sent, until the replica itself reports its blocks
MOST_SENT = 4000  # blocks per replica
MOST_ROUTED = 10_000  # requests of which it is known where they were sent
ROUTED_WITHIN_S = 5.0


class PrefixRouter(RequestRouter):
    """Tracks resident blocks from what replicas report a few times a second and from the prompts sent to them since.

    It runs in the ingress and sees each call's arguments, the first of which is the prompt's token ids.
    """

    def initialize_state(self, block_size: int = 16, slack: int = 8, round_robin: bool = False, **_: Any) -> None:
        """Called by Ray with ``request_router_kwargs``.

        Args:
            block_size: of the engines' KV caches.
            slack: see ``routing.ranked``.
            round_robin: ignore prompts and loads and use replicas in turn; for comparison.
        """
        self._block_size, self._slack = block_size, slack
        self._turns = itertools.count() if round_robin else None
        self._rng = random.Random()
        self._reported: dict[ReplicaID, tuple[bytes, frozenset[int]]] = {}
        self._sent: dict[ReplicaID, _Sent] = {}
        self._on_the_way: dict[int, tuple[ReplicaID, float]] = {}  # chosen, not yet counted by Ray
        self._routed: OrderedDict[Any, set[ReplicaID]] = OrderedDict()  # by request, oldest first

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Returns replicas, each with a rank of its own: Ray takes the first that accepts the request.

        A request that comes again, since the replica that had it failed, goes to one that has not had it, if there is
        any.
        """
        tried = self._routed.get(_request(pending_request), ())
        replicas = [replica for replica in candidate_replicas if replica.replica_id not in tried] or candidate_replicas
        replicas = sorted(replicas, key=lambda replica: str(replica.replica_id))
        if not replicas:
            return []
        if self._turns is not None:
            turn = next(self._turns) % len(replicas)
            return [[replica] for replica in replicas[turn:] + replicas[:turn]]
        prompt: Sequence[int] = pending_request.args[0] if pending_request is not None and pending_request.args else ()
        hashes = block_hashes(prompt, self._block_size)
        chosen = Counter(replica_id for replica_id, _ in self._still_on_the_way())
        candidates = [self._candidate(replica, hashes, chosen[replica.replica_id]) for replica in replicas]
        ranks = [replicas[index] for index in ranked(candidates, self._slack, self._rng)]
        self._note(ranks[0].replica_id, hashes)
        if pending_request is not None:
            self._on_the_way[id(pending_request)] = ranks[0].replica_id, time.monotonic()
        return [[replica] for replica in ranks]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        if (request := _request(pending_request)) is not None:
            self._routed.setdefault(request, set()).add(replica_id)
            if len(self._routed) > MOST_ROUTED:
                self._routed.popitem(last=False)
        chosen = self._on_the_way.pop(id(pending_request), None)
        if self._turns is None and pending_request.args and (chosen is None or chosen[0] != replica_id):
            self._note(replica_id, block_hashes(pending_request.args[0], self._block_size))

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        there = {replica.replica_id for replica in replicas}
        for table in (self._reported, self._sent):
            for replica_id in table.keys() - there:
                del table[replica_id]

    def _candidate(self, replica: RunningReplica, hashes: Sequence[int], chosen: int) -> Candidate:
        stats = replica.routing_stats
        counted = self.replica_queue_len_cache.get(replica.replica_id)
        load = (stats.get("unfinished", 0) if counted is None else counted) + chosen
        reported, sent = self._resident(replica), self._sent.setdefault(replica.replica_id, _Sent()).recent()
        return Candidate(load, leading(hashes, reported, sent), len(reported) + len(sent.keys() - reported))

    def _resident(self, replica: RunningReplica) -> frozenset[int]:
        """Returns the replica's last report, which is unpacked only once."""
        packed = replica.routing_stats.get("blocks", b"")
        entry = self._reported.get(replica.replica_id)
        if entry is None or entry[0] != packed:
            entry = self._reported[replica.replica_id] = packed, unpack(packed)
        return entry[1]

    def _note(self, replica_id: ReplicaID, hashes: Iterable[int]) -> None:
        self._sent.setdefault(replica_id, _Sent()).add(hashes)

    def _still_on_the_way(self) -> list[tuple[ReplicaID, float]]:
        """Returns choices that Ray has not acted on yet; those of cancelled requests expire."""
        oldest = time.monotonic() - ROUTED_WITHIN_S
        self._on_the_way = {key: choice for key, choice in self._on_the_way.items() if choice[1] >= oldest}
        return list(self._on_the_way.values())


def _request(pending: PendingRequest | None) -> Any | None:
    """Returns what names a request each time that it is sent; None for other calls, which have fewer arguments."""
    return tuple(pending.args[3:5]) if pending is not None and len(pending.args) >= 5 else None


class _Sent:
    """Blocks of prompts sent to a replica, oldest first, each with its time."""

    def __init__(self) -> None:
        self._times: OrderedDict[int, float] = OrderedDict()

    def add(self, hashes: Iterable[int]) -> None:
        now = time.monotonic()
        for block_hash in hashes:
            self._times[block_hash] = now
            self._times.move_to_end(block_hash)

    def recent(self) -> OrderedDict[int, float]:
        oldest = time.monotonic() - SENT_S
        while self._times and (len(self._times) > MOST_SENT or next(iter(self._times.values())) < oldest):
            self._times.popitem(last=False)
        return self._times
