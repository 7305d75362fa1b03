"""A server's unfinished requests, and the telemetry of what arrives for them."""

from __future__ import annotations

import asyncio

from roseplay.clock import Clock
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.live_streams import LiveStreams
from roseplay.engine.request_metrics import ServerTimes
from roseplay.engine.telemetry import Telemetry, TokenEvent, TokensEvent
from roseplay.remote.chunk import Usage
from roseplay.remote.stream import HttpStream

FLUSH_S = 0.02  # interval of token events: with one for each token, the telemetry's ring buffer would soon be full
UNKNOWN_ID = -1


class RemoteStreams(LiveStreams[HttpStream]):
    """Feeds streams. They may be ended from any thread; everything else happens on the loop's thread.

    Args:
        capabilities: as found while attaching; those that an answer proves are added.

    Attributes:
        heard_ns: time of the last arrival from the server.
    """

    def __init__(self, telemetry: Telemetry, clock: Clock, capabilities: Capabilities) -> None:
        super().__init__(telemetry, clock)
        self.capabilities = capabilities
        self.heard_ns = clock.now_ns()
        self._tokens: list[TokenEvent] = []

    def leave(self, stream: HttpStream) -> bool:
        left = super().leave(stream)
        if left:
            self._flush()
        return left

    def push(self, stream: HttpStream, text: str, time_ns: int, tokens: int = 1) -> None:
        """Take a piece of an answer that has arrived; all its tokens but the first have a gap of 0. It may have none."""
        if stream.finished:
            return
        last_ns = stream.metrics.last_token_ns
        stream.push_piece(text, time_ns, tokens)
        if not tokens:
            return  # readers get the text at the end
        if last_ns is None:
            self.first_token(stream, time_ns)
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
