"""Publishing sockets: messages of three frames (topic, sequence number, payload) that no slow subscriber holds up."""

from __future__ import annotations

from typing import Any

from roseplay.wire.extra import zmq

SEQUENCE_BYTES = 8  # big-endian
HIGH_WATER_MARK = 10_000  # messages that wait for a subscriber; it misses further ones
_MOST_RECEIVED = 4096  # bytes of a frame: topics to subscribe to and numbers are short; who sends more is disconnected


def endpoint_of(host: str, port: int) -> str:
    """Returns the endpoint to bind; port 0 is any free one."""
    name = f"[{host}]" if ":" in host else host
    return f"tcp://{name}:{port or '*'}"


def bound_socket(context: Any, kind: int, endpoint: str, high_water_mark: int = HIGH_WATER_MARK) -> Any:
    """Returns a new socket that listens at ``endpoint``; raises ``OSError``, one line, if it cannot."""
    socket = context.socket(kind)
    socket.linger = 0
    socket.sndhwm = high_water_mark
    socket.maxmsgsize = _MOST_RECEIVED
    if "[" in endpoint:
        socket.ipv6 = True
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close()
        raise OSError(error.errno, f"{endpoint} cannot be listened at: {zmq.strerror(error.errno or 0)}") from None
    return socket


class Publication:
    """A PUB socket whose messages are numbered from 0. One thread may use it at a time.

    Attributes:
        endpoint: where it listens.
        next: the number of the next message.
    """

    def __init__(self, context: Any, endpoint: str, topic: str = "") -> None:
        self._socket = bound_socket(context, zmq.PUB, endpoint)
        self._topic = topic.encode()
        self.endpoint: str = self._socket.last_endpoint.decode()
        self.next = 0

    def send(self, payload: bytes) -> int:
        """Send a message to whoever has room for it, and return its number."""
        number = self.next
        self.next += 1
        self._socket.send_multipart([self._topic, sequence_bytes(number), payload], zmq.NOBLOCK)
        return number

    def skip(self) -> None:
        """Leave a gap in the numbers, so that subscribers know that something is missing."""
        self.next += 1


def sequence_bytes(number: int) -> bytes:
    return number.to_bytes(SEQUENCE_BYTES, "big", signed=number < 0)
