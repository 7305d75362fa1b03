"""The connections to a server, and the thread that reads all its streams."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import httpx

from roseplay.clock import Clock
from roseplay.core.request import FinishReason
from roseplay.engine.loop_thread import LoopThread
from roseplay.extras.servers.control import Control
from roseplay.extras.servers.exchange import Exchanges
from roseplay.extras.servers.lateness import Lateness
from roseplay.extras.servers.live import RemoteStreams
from roseplay.extras.servers.stream import HttpStream
from roseplay.extras.servers.timings import Timings

CONNECT_S = 10.0
_CLOSED = "the engine was closed"


class Connection:
    """The requests to a server, on an event loop in a thread of its own, which ends with ``close``.

    Each request has a connection of its own, however many there are, and never waits here for another to end. A stream
    may be silent for any length of time: ``Monitor`` checks whether the server is still there.
    """

    def __init__(
        self, control: Control, live: RemoteStreams, clock: Clock, timings: Timings, *, counts_chunks: bool = False
    ) -> None:
        self._live = live
        self.lateness = Lateness(clock)  # with which requests are sent and answers read here
        self._control = control
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._client = _client(control.headers, timings.keep_idle_s)
        self._exchanges = Exchanges(
            *(self._client, control.root, live, clock, self.lateness),
            counts_chunks=counts_chunks,
            refusal_s=timings.refusal_s,
        )
        self._loop = LoopThread("roseplay-http", self._client.aclose)
        self._loop.start(self.lateness.watch())

    # -- any thread

    def start(self, stream: HttpStream, path: str, body: dict[str, object]) -> None:
        """Send a request whose stream is already live."""
        self._call(partial(self._start, stream, path, body))

    def cancel(self, stream: HttpStream) -> None:
        """End a stream with ``abort`` and close its connection."""
        self._call(partial(self._cancel, stream))

    def end_all(self, reason: FinishReason, error: str) -> None:
        """End every stream and close their connections."""
        self._call(partial(self._end_all, reason, error))

    def close(self, timeout: float) -> None:
        """End every stream with ``abort``, and end the thread."""
        self.end_all(FinishReason.ABORT, _CLOSED)
        self._loop.close(timeout)
        self._live.end_all(FinishReason.ABORT, _CLOSED)  # if the thread has not ended in time
        self._control.close()

    def _call(self, do: partial[None]) -> None:
        try:
            self._loop.call(do)
        except RuntimeError:  # the loop was closed meanwhile
            self._live.end_all(FinishReason.ABORT, _CLOSED)

    # -- the loop's thread

    def _start(self, stream: HttpStream, path: str, body: dict[str, object]) -> None:
        if stream.finished:
            return
        task = asyncio.get_running_loop().create_task(self._exchanges.run(stream, path, body))
        self._tasks[stream.request_id] = task
        task.add_done_callback(partial(self._ended, stream))

    def _ended(self, stream: HttpStream, task: asyncio.Task[None]) -> None:
        self._tasks.pop(stream.request_id, None)
        if task.cancelled():  # possibly before it began
            self._live.end(stream, FinishReason.ABORT)
        elif (error := task.exception()) is not None:
            self._live.end(stream, FinishReason.ERROR, f"the request failed ({type(error).__name__})")

    def _cancel(self, stream: HttpStream) -> None:
        self._live.end(stream, FinishReason.ABORT)
        if (task := self._tasks.get(stream.request_id)) is not None:
            task.cancel()

    def _end_all(self, reason: FinishReason, error: str) -> None:
        self._live.end_all(reason, error)
        for task in list(self._tasks.values()):
            task.cancel()


def _client(headers: Mapping[str, str], keep_idle_s: float) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=keep_idle_s)
    timeout = httpx.Timeout(None, connect=CONNECT_S)
    whole = {"Accept-Encoding": "identity"}  # compressed events would arrive in batches
    return httpx.AsyncClient(limits=limits, timeout=timeout, headers={**headers, **whole}, trust_env=False)
