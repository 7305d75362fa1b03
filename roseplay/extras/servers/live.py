"""A server's unfinished requests, and the telemetry of what arrives for them."""

from __future__ import annotations

import asyncio
import re
import uuid

from roseplay.clock import Clock
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.live_streams import LiveStreams
from roseplay.engine.request_metrics import ServerTimes
from roseplay.engine.telemetry import Telemetry, TokensEvent
from roseplay.engine.ttft_causes import CauseCounter
from roseplay.extras.servers.chunk import Usage
from roseplay.extras.servers.stream import HttpStream

FLUSH_S = 0.02  # interval of token events: with one for each token, the telemetry's ring buffer would soon be full


class RemoteStreams(LiveStreams[HttpStream]):
    """Feeds streams. They may be ended from any thread; everything else happens on the loop's thread.

    Args:
        capabilities: as found while attaching; those that an answer proves are added.
    """

    def __init__(self, telemetry: Telemetry, clock: Clock, capabilities: Capabilities) -> None:
        super().__init__(telemetry, clock)
        self.capabilities = capabilities
        self.heard_ns = clock.now_ns()  # time of the last arrival from the server
        self._name = f"roseplay-{uuid.uuid4().hex[:12]}-"
        self._fresh: dict[HttpStream, None] = {}  # with tokens that have not been published

    def name(self, stream: HttpStream) -> str:
        """Returns a request's name for the server; its own may contain it."""
        return f"{self._name}{stream.request_id}"

    def number_in(self, name: str) -> int | None:
        """Returns the number of the request whose name a server's one contains; ``None`` if it is another client's."""
        match = re.search(rf"{self._name}(\d{{1,15}})", name)
        return int(match[1]) if match else None

    def leave(self, stream: HttpStream) -> bool:
        if left := super().leave(stream):
            self._flush()
        return left

    def push(self, stream: HttpStream, text: str, time_ns: int, tokens: int = 1) -> None:
        """Take a piece of an answer that has arrived; all its tokens but the first have a gap of 0. It may have none."""
        if stream.finished:
            return
        is_first = stream.metrics.last_token_ns is None
        stream.push_piece(text, time_ns, tokens)
        if not tokens:
            return  # readers get the text at the end
        if is_first:
            self.first_token(stream, time_ns)
        with self._lock:
            if not self._fresh:
                asyncio.get_running_loop().call_later(FLUSH_S, self._flush)
            self._fresh[stream] = None
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

    # -- the thread that follows the server's steps, if they are known

    def report_by_steps(self, stream: HttpStream) -> None:
        """Publish no more of a stream's tokens as they arrive: its steps will tell them."""
        with self._lock:
            stream.in_steps = True

    def reported_by_step(self, stream: HttpStream, first: int, count: int) -> range:
        """Returns which of a step's tokens are to be published with it, by their places in the step.

        Args:
            first: place of the first of them in the answer.
        """
        with self._lock:
            end = first + count
            if stream.finished:  # its server may have computed more
                end = min(end, stream.metrics.completion_tokens)
            begin, stream.published = max(first, stream.published), max(end, stream.published)
            return range(begin - first, end - first)

    def restart_steps(self) -> None:
        """Publish what has arrived and no step has told, and all further tokens as they arrive."""
        self.causes = CauseCounter()
        with self._lock:
            for stream in self._streams.values():
                if stream.in_steps:
                    stream.in_steps = False
                    self._fresh[stream] = None
        self._flush()

    def _flush(self) -> None:
        """Publish the tokens so far, ahead of the end of a request to which some of them may belong."""
        with self._lock:
            streams, self._fresh = self._fresh, {}
            tokens = [token for stream in streams if not stream.in_steps for token in stream.unpublished()]
        if tokens:
            self._telemetry.add(TokensEvent(sorted(tokens, key=lambda token: token.time_ns)))
