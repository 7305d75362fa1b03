"""A subscription to numbered messages, which detects gaps in the numbers and requests missing messages once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from roseplay.wire.extra import WireError, zmq
from roseplay.wire.kv_publisher import END
from roseplay.wire.problems import Problems
from roseplay.wire.sockets import SEQUENCE_BYTES, open_socket, sequence_bytes

REPLAY_TIMEOUT_S = 2.0
_MOST_WAITING = 100_000  # messages queued, such as those that arrive while a replay is read
_AT_ONCE = 1000


class Subscription:
    """A SUB socket, and a new DEALER socket for each replay.

    Args:
        endpoint: for example ``tcp://127.0.0.1:5557`` or ``ipc:///tmp/socket``.
        name: of the messages, for reports.
        replay_endpoint: where to request missing messages; without it they are lost.
        replay_timeout_s: seconds to wait for a replay.

    Attributes:
        socket: the SUB socket, for polling.

    Raises:
        WireError: an endpoint is invalid.
    """

    def __init__(
        self,
        context: Any,
        endpoint: str,
        name: str,
        problems: Problems,
        replay_endpoint: str | None = None,
        replay_timeout_s: float = REPLAY_TIMEOUT_S,
    ) -> None:
        self._context = context
        self._name = name
        self._problems = problems
        self._replay_endpoint, self._replay_timeout_s = replay_endpoint, replay_timeout_s
        self._last: int | None = None  # the number of the newest message, live or replayed
        self._last_live: int | None = None
        self.socket = _connected(context, zmq.SUB, endpoint)
        if replay_endpoint is not None:
            _connected(context, zmq.DEALER, replay_endpoint).close()  # to report a bad address now

    def history(self) -> Iterator[bytes]:
        """Yields the payloads from before the subscription that the publisher still has, the oldest first."""
        if self._replay_endpoint is not None:
            for number, payload in self._fetch(0, None):
                self._last = number
                yield payload

    def received(self) -> Iterator[bytes | None]:
        """Yields the payloads that have arrived, in order; ``None`` where the publisher has restarted."""
        for _ in range(_AT_ONCE):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            number = int.from_bytes(frames[1], "big", signed=True) if len(frames) == 3 else -1
            if number >= 0 and len(frames[1]) == SEQUENCE_BYTES:
                yield from self._in_order(number, frames[2])
            else:
                self._problems.skip(f"{self._name}: a message that is not topic, number and payload")

    def _in_order(self, number: int, payload: bytes) -> Iterator[bytes | None]:
        restarted = self._last_live is not None and number <= self._last_live
        self._last_live = number
        if restarted:
            yield None
            self._last = -1
        elif self._last is not None and number <= self._last:
            return  # it has been replayed already
        if self._last is not None and number > self._last + 1:
            yield from self._missing(self._last + 1, number)
        self._last = number
        yield payload

    def _missing(self, start: int, end: int) -> Iterator[bytes]:
        """Yields the payloads from ``start`` to before ``end`` that can still be replayed, and counts the others."""
        found = 0
        if self._replay_endpoint is not None:
            for _, payload in self._fetch(start, end):
                found += 1
                yield payload
        if found:
            self._problems.fetched[self._name] += found
        if found < end - start:
            self._problems.lost[self._name] += end - start - found

    def _fetch(self, start: int, end: int | None) -> Iterator[tuple[int, bytes]]:
        """Yields numbers and payloads from the replay socket, in order, until its end marker or the timeout."""
        assert self._replay_endpoint is not None
        socket = _connected(self._context, zmq.DEALER, self._replay_endpoint)
        deadline = time.monotonic() + self._replay_timeout_s
        try:
            socket.send_multipart([b"", sequence_bytes(start)], zmq.NOBLOCK)
            expected = start
            while socket.poll(max(0, int(1000 * (deadline - time.monotonic())))):
                frames = socket.recv_multipart()
                if len(frames) < 2 or len(frames[-2]) != SEQUENCE_BYTES:
                    self._problems.skip(f"{self._name}: a message in a replay that is not number and payload")
                    continue
                number, payload = int.from_bytes(frames[-2], "big", signed=True), frames[-1]
                if number == END:
                    return
                if number >= expected and (end is None or number < end):
                    expected = number + 1
                    yield number, payload
            self._problems.skip(f"{self._name}: a replay that did not end within {self._replay_timeout_s:g} s")
        except zmq.Again:
            self._problems.skip(f"{self._name}: a replay that could not be requested")
        finally:
            socket.close()


def _connected(context: Any, kind: int, endpoint: str) -> Any:
    """Returns a new socket connected to the endpoint; raises ``WireError`` if that is invalid."""
    try:
        socket = open_socket(context, kind, endpoint, "connect", rcvhwm=_MOST_WAITING)
    except zmq.ZMQError as error:
        why = zmq.strerror(error.errno or 0)
        raise WireError(f"{endpoint!r} is not an endpoint such as tcp://127.0.0.1:5557: {why}") from None
    if kind == zmq.SUB:
        socket.subscribe(b"")
    return socket
