"""A server's unfinished requests, and the telemetry of what arrives for them."""

from __future__ import annotations

import asyncio
import logging
import threading

from roseplay.clock import Clock
from roseplay.core.request import FinishReason
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.request_metrics import ServerTimes
from roseplay.engine.telemetry import RequestEvent, Telemetry, TokenEvent, TokensEvent
from roseplay.remote.chunk import Usage
from roseplay.remote.stream import HttpStream

logger = logging.getLogger(__name__)

FLUSH_S = 0.02  # interval of token events: with one for each token, the telemetry's ring buffer would soon be full
UNKNOWN_ID = -1


class LiveStreams:
    """Feeds streams. They may be ended from any thread; everything else happens on the loop's thread.

    Args:
        capabilities: as found while attaching; those that an answer proves are added.

    Attributes:
        heard_ns: time of the last arrival from the server.
    """

    def __init__(self, telemetry: Telemetry, clock: Clock, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.heard_ns = clock.now_ns()
        self._telemetry = telemetry
        self._clock = clock
        self._streams: dict[int, HttpStream] = {}
        self._lock = threading.Lock()
        self._tokens: list[TokenEvent] = []

    # -- any thread

    def add(self, stream: HttpStream) -> None:
        with self._lock:
            self._streams[stream.request_id] = stream
        self._telemetry.add(RequestEvent("submitted", stream.request_id, stream.metrics.submitted_ns, stream))

    def get(self, request_id: int) -> HttpStream | None:
        return self._streams.get(request_id)

    def all(self) -> list[HttpStream]:
        with self._lock:
            return list(self._streams.values())

    @property
    def count(self) -> int:
        return len(self._streams)

    def end(self, stream: HttpStream, reason: FinishReason, error: str | None = None) -> None:
        """End a stream unless it has already ended."""
        with self._lock:
            if self._streams.pop(stream.request_id, None) is None:
                return
        self._flush()
        time_ns = self._clock.now_ns()
        stream.finish(reason, time_ns, error)
        self._telemetry.add(RequestEvent("finished", stream.request_id, time_ns, stream))

    def end_all(self, reason: FinishReason, error: str) -> None:
        for stream in self.all():
            try:
                self.end(stream, reason, error)
            except BaseException:  # the others must not wait forever
                logger.exception("request %d was ended, but not all of its readers were notified", stream.request_id)

    # -- the loop's thread

    def push(self, stream: HttpStream, text: str, time_ns: int, tokens: int = 1) -> None:
        """Take a piece of an answer that has arrived; all its tokens but the first have a gap of 0. It may have none."""
        if stream.finished:
            return
        last_ns = stream.metrics.last_token_ns
        stream.push_piece(text, time_ns, tokens)
        if not tokens:
            return  # readers get the text at the end
        if last_ns is None:
            self._telemetry.add(RequestEvent("first_token", stream.request_id, time_ns, stream))
        itl_ns = None if last_ns is None else time_ns - last_ns
        with self._lock:
            if not self._tokens:
                asyncio.get_running_loop().call_later(FLUSH_S, self._flush)
            self._tokens.append(TokenEvent(stream.request_id, UNKNOWN_ID, time_ns, itl_ns))
            self._tokens += [TokenEvent(stream.request_id, UNKNOWN_ID, time_ns, 0)] * (tokens - 1)
        stream.notify()

    def correct(self, stream: HttpStream, usage: Usage | None, times: ServerTimes | None) -> None:
        """Take over the server's counts and times for a request that is about to end."""
        stream.correct(usage, times)
        if usage is not None and usage.cached is not None:
            self.learn("cached_tokens")
        if times is not None and times.queue_s is not None:
            self.learn("server_times")

    def learn(self, name: str) -> None:
        """Note that the server has a capability after all."""
        if not getattr(self.capabilities, name):
            self.capabilities = self.capabilities.adding(name)

    def _flush(self) -> None:
        """Publish the tokens so far, ahead of the end of a request to which some of them may belong."""
        with self._lock:
            tokens, self._tokens = self._tokens, []
        if tokens:
            self._telemetry.add(TokensEvent(tokens))
