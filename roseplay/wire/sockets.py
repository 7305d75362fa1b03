"""Publishing sockets. Messages are of three frames: empty topic, number, payload. Slow subscribers do not block."""

from __future__ import annotations

from typing import Any

from roseplay.wire.extra import zmq

SEQUENCE_BYTES = 8  # big-endian
HIGH_WATER_MARK = 10_000  # the most messages that wait for a subscriber; it misses further ones
_MOST_RECEIVED = 4096  # bytes per frame; a client that sends more than a short topic or number is disconnected


def endpoint_of(host: str, port: int) -> str:
    """Returns the endpoint to bind; port 0 means any free one."""
    name = f"[{host}]" if ":" in host else host
    return f"tcp://{name}:{port or '*'}"


def bound_socket(context: Any, kind: int, endpoint: str, high_water_mark: int = HIGH_WATER_MARK) -> Any:
    """Returns a new socket that listens at ``endpoint``; raises ``OSError``, with a one-line message, if it cannot."""
    try:
        return open_socket(context, kind, endpoint, "bind", sndhwm=high_water_mark, maxmsgsize=_MOST_RECEIVED)
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"cannot listen at {endpoint}: {zmq.strerror(error.errno or 0)}") from None


def open_socket(context: Any, kind: int, endpoint: str, how: str, **options: int) -> Any:
    """Returns a new socket with these options, bound or connected (``how``); raises ``zmq.ZMQError``."""
    socket = context.socket(kind)
    for name, value in {"linger": 0, "ipv6": "[" in endpoint, **options}.items():
        setattr(socket, name, value)
    try:
        getattr(socket, how)(endpoint)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket


class Publication:
    """A PUB socket whose messages are numbered from 0. One thread may use it at a time.

    Attributes:
        endpoint, socket: where it listens, and with what.
        next: the number of the next message.
    """

    def __init__(self, context: Any, endpoint: str) -> None:
        self.socket = bound_socket(context, zmq.PUB, endpoint)
        self.endpoint: str = self.socket.last_endpoint.decode()
        self.next = 0

    def send(self, payload: bytes) -> int:
        """Send a message to the subscribers whose queues have room, and return its number."""
        number = self.next
        self.next += 1
        self.socket.send_multipart([b"", sequence_bytes(number), payload], zmq.NOBLOCK)
        return number

    def skip(self) -> None:
        """Skip a number, so that subscribers notice that a message is missing."""
        self.next += 1


def sequence_bytes(number: int) -> bytes:
    return number.to_bytes(SEQUENCE_BYTES, "big", signed=number < 0)
