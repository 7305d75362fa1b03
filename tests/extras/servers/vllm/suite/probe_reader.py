"""A reader of the probe's messages, and what follows from them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

Message = dict[str, Any]


@dataclass
class Mirror:
    """A snapshot and the messages after it, added up: blocks of requests, and blocks with their references if not free."""

    n: int
    held: dict[str, list[int]]
    computed: dict[str, int]
    pool: dict[int, tuple[int, int]]
    free: int
    cached: int
    limits: dict[str, int]

    @staticmethod
    def of(snapshot: Message) -> Mirror:
        running = [row for row in snapshot["requests"] if row[4] == "running"]
        return Mirror(
            n=snapshot["n"],
            held={row[0]: row[6] for row in running},
            computed={row[0]: row[2] for row in running},
            pool={block: (references, findable) for block, references, findable in snapshot["pool"]},
            free=snapshot["free"],
            cached=snapshot["cached"],
            limits=snapshot["limits"],
        )

    def add(self, message: Message) -> None:
        assert message["n"] == self.n + 1, "a message is lost"
        self.n = message["n"]
        if message["kind"] == "limits":
            self.limits = message["limits"]
        if message["kind"] == "reset":  # only an engine that is idle can clear its cache
            self.pool, self.free, self.cached = {}, self.free + self.cached, 0
        if message["kind"] != "step":
            return
        for name in message["preempted"]:
            self.held.pop(name, None), self.computed.pop(name, None)
        for name, _, cached, *_ in message["new"]:
            assert name not in self.held
            self.held[name], self.computed[name] = [], cached
        for name, blocks in message["blocks"].items():
            self.held[name] += blocks
        for name, tokens, before, _, drafts, accepted in message["entries"]:
            assert self.computed[name] == before, "tokens were computed in a step that was not told"
            self.computed[name] += tokens - drafts + accepted
        for block, references, findable in message["changed"]:
            self.pool[block] = references, findable
            if (references, findable) == (0, 0):
                del self.pool[block]
        for name, _ in message["ended"]:
            self.held.pop(name, None), self.computed.pop(name, None)
        self.free, self.cached = message["free"], message["cached"]

    def check(self) -> None:
        """Each block has as many references as requests hold it."""
        holders = Counter(block for blocks in self.held.values() for block in blocks)
        assert holders == {block: references for block, (references, _) in self.pool.items() if references}
        assert self.cached == sum(not references for references, _ in self.pool.values())


def check(snapshot: Message, *messages: Message) -> None:
    """Messages add up."""
    mirror = Mirror.of(snapshot)
    for message in messages:
        mirror.add(message)
        mirror.check()


class Reader:
    """Both sockets of a probe; waits no longer than a minute for anything."""

    def __init__(self, port: int, key: str = "", host: str = "127.0.0.1") -> None:
        self._context, self._host, self._port, self._key = zmq.Context(), host, port, key
        self.steps = self._socket(zmq.SUB, port)
        self.steps.subscribe(b"")
        self.orders = self._socket(zmq.REQ, port + 1)

    def _socket(self, kind: int, port: int) -> Any:
        socket = self._context.socket(kind)
        socket.linger, socket.rcvtimeo, socket.sndtimeo, socket.rcvhwm = 0, 60_000, 60_000, 100_000
        if self._key:
            socket.plain_username, socket.plain_password = b"roseplay", self._key.encode()
        socket.connect(f"tcp://{self._host}:{port}")
        return socket

    def close(self) -> None:
        self._context.destroy(linger=0)

    def order(self, **order: Any) -> Message:
        return self.raw(json.dumps(order).encode())

    def raw(self, text: bytes) -> Message:
        self.orders.send(text)
        return json.loads(self.orders.recv())

    def snapshot(self) -> Message:
        return self.order(ask="snapshot")

    def next(self) -> Message:
        return json.loads(self.steps.recv())

    def until(self, done: Callable[[Message], bool]) -> list[Message]:
        """The messages up to the one that is looked for."""
        messages = [self.next()]
        while not done(messages[-1]):
            messages.append(self.next())
        return messages

    def quiet(self, ms: int = 300) -> list[Message]:
        """The messages until none has come for so long."""
        messages = []
        while self.steps.poll(ms):
            messages.append(self.next())
        return messages

    def attached(self) -> Message:
        """A snapshot, with all messages after it to come: the steps' socket is connected."""
        deadline = time.monotonic() + 60
        while True:  # a change that changes nothing is published, and says that this reader is there
            limits = self.snapshot()["limits"]
            self.order(set=limits)
            if self.quiet(50):
                return self.snapshot()
            assert time.monotonic() < deadline, "no message comes"
