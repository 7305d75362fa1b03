"""The requests of an engine that have not ended, and the telemetry of how they begin and end."""

from __future__ import annotations

import logging
import threading
from typing import Generic, TypeVar

from roseplay.clock import Clock
from roseplay.core.request import FinishReason
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import RequestEvent, RequestKind, Telemetry
from roseplay.engine.ttft_causes import CauseCounter

logger = logging.getLogger(__name__)
AnyStream = TypeVar("AnyStream", bound=Stream)


class LiveStreams(Generic[AnyStream]):
    """The streams that have not ended. One thread feeds them; all methods may be called from any.

    Args:
        telemetry: gets an event for each step of a request's life.
        clock: source of the time when a stream is ended here.

    Attributes:
        causes: of times to first token, for an engine whose steps are known.
    """

    def __init__(self, telemetry: Telemetry, clock: Clock) -> None:
        self._telemetry, self._clock, self.causes = telemetry, clock, CauseCounter()
        self._streams: dict[int, AnyStream] = {}
        self._lock = threading.Lock()
        self._num_scheduled = 0

    def add(self, stream: AnyStream) -> None:
        """Take a request that has been submitted."""
        self.causes.submitted(stream.request_id, stream.metrics.submitted_ns)
        with self._lock:
            self._streams[stream.request_id] = stream
        self._note("submitted", stream, stream.metrics.submitted_ns)

    def get(self, request_id: int) -> AnyStream | None:
        return self._streams.get(request_id)

    def live(self) -> list[AnyStream]:
        with self._lock:
            return list(self._streams.values())

    @property
    def num_live(self) -> int:
        return len(self._streams)

    @property
    def num_waiting(self) -> int:
        """The number of requests that no step has scheduled yet."""
        return max(0, len(self._streams) - self._num_scheduled)

    def scheduled(self, stream: AnyStream, time_ns: int) -> None:
        """Note that a step has scheduled a request, unless an earlier one has or the request has ended."""
        with self._lock:
            if stream.metrics.scheduled_ns is not None or stream.request_id not in self._streams:
                return
            stream.metrics.scheduled_ns = time_ns
            self._num_scheduled += 1
        self._note("scheduled", stream, time_ns)

    def first_token(self, stream: AnyStream, time_ns: int) -> None:
        if (ttft_s := stream.metrics.ttft_s) is not None:
            stream.metrics.ttft_causes = self.causes.first_token(stream.request_id, ttft_s)
        self._note("first_token", stream, time_ns)

    def leave(self, stream: AnyStream) -> bool:
        """Remove a stream that is about to end; returns ``False`` if it has ended already."""
        self.causes.forget(stream.request_id)
        with self._lock:
            if self._streams.pop(stream.request_id, None) is None:
                return False
            if stream.metrics.scheduled_ns is not None:
                self._num_scheduled -= 1
            return True

    def end(
        self, stream: AnyStream, reason: FinishReason, error: str | None = None, *, time_ns: int | None = None
    ) -> None:
        """End a stream, now or at ``time_ns``, unless it has ended; its worker will publish nothing more for it."""
        if self.leave(stream):
            time_ns = self._clock.now_ns() if time_ns is None else time_ns
            stream.finish(reason, time_ns, error)
            self.ended(stream, time_ns)

    def ended(self, stream: AnyStream, time_ns: int) -> None:
        """Note the end of a stream that has left."""
        self._note("finished", stream, time_ns)

    def end_all(self, reason: FinishReason, error: str) -> None:
        """End every live stream now."""
        for stream in self.live():
            try:
                self.end(stream, reason, error)
            except BaseException:  # the readers of other streams must not wait forever
                logger.exception("request %d was ended, but not all of its readers were notified", stream.request_id)

    def _note(self, kind: RequestKind, stream: AnyStream, time_ns: int) -> None:
        self._telemetry.add(RequestEvent(kind, stream.request_id, time_ns, stream))
