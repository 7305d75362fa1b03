"""The connections to the probe inside vLLM: its messages, and orders with their replies."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import zmq

from roseplay.engine.errors import EngineError
from roseplay.extras.servers.address import StepsAddress
from roseplay.extras.servers.vllm.messages import reply_in
from roseplay.formats.text import one_line

MOST_MESSAGE, MOST_REPLY = 4 << 20, 64 << 20  # bytes
MOST_QUEUED = 1000  # messages
_POLL_MS = 100
_ADDRESS = re.compile(r"tcp://(\[[0-9a-fA-F:]+\]|[\w.-]+):(\d{1,5})")

Ask = Callable[[Mapping[str, Any], Any], Any]  # an order and the type of its reply -> the reply


class Sockets:
    """Connections that never wait longer than ``reply_s`` seconds. ``orders`` may be called from any thread.

    Attributes:
        closing: set it to end all waiting, before ``close``.

    Raises:
        ValueError: the address is none of a probe.
    """

    def __init__(self, address: StepsAddress, reply_s: float) -> None:
        parts = _ADDRESS.fullmatch(address.url)
        if parts is None or not 0 < int(parts[2]) < 65535:
            raise ValueError(f"{address.url!r} is no address of a probe: use one like tcp://host:5601")
        self._orders = f"tcp://{parts[1]}:{int(parts[2]) + 1}"
        self._key, self._reply_s = address.key, reply_s
        self.closing = threading.Event()
        self._context = zmq.Context()
        self._messages = self._connect(zmq.SUB, address.url, MOST_MESSAGE)
        self._messages.subscribe(b"")

    def receive(self) -> bytes | None:
        """Returns the next message; ``None`` if there is none for a moment."""
        return self._messages.recv() if self._messages.poll(_POLL_MS) else None

    @contextmanager
    def orders(self) -> Iterator[Ask]:
        """Yields a function that sends an order and returns the reply.

        It raises ``ValueError`` with the reason if the probe refuses the order, ``EngineError`` if it does not answer.
        """
        try:
            socket = self._connect(zmq.REQ, self._orders, MOST_REPLY)
        except zmq.ZMQError:
            raise EngineError("the engine is closed") from None
        try:
            yield lambda order, kind: self._ask(socket, order, kind)
        except zmq.ZMQError as error:
            raise EngineError(f"{self._orders}: {one_line(error)}") from None
        finally:
            socket.close()

    def close(self) -> None:
        """Close the connection that ``receive`` uses, on its thread, and wait for those of orders."""
        self.closing.set()
        self._messages.close()
        self._context.term()

    def _ask(self, socket: zmq.Socket[bytes], order: Mapping[str, Any], kind: Any) -> Any:
        socket.send_json(order)
        until = time.monotonic() + self._reply_s
        while not socket.poll(_POLL_MS):
            if self.closing.is_set():
                raise EngineError("the engine is closed")
            if time.monotonic() > until:
                has_key = "is its key right" if self._key else "does it need a key"
                raise EngineError(
                    f"{self._orders} has not answered in {self._reply_s:g} s: was vLLM started with the probe, and {has_key}"
                    " (--steps-key)?"
                )
        return reply_in(socket.recv(), kind)

    def _connect(self, kind: int, url: str, most: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger, socket.ipv6, socket.sndtimeo = 0, True, _POLL_MS
        socket.maxmsgsize, socket.rcvhwm = most, MOST_QUEUED
        if self._key is not None:
            socket.plain_username, socket.plain_password = b"roseplay", self._key.encode()
        socket.connect(url)
        return socket
