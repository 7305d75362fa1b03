"""Publishes an engine's telemetry until closed: KV events, forward pass metrics, or both."""

from __future__ import annotations

import time
import uuid
from contextlib import AbstractContextManager
from typing import Any

from roseplay.engine.engine_like import EngineLike
from roseplay.engine.telemetry import StepEvent, TelemetryEvent
from roseplay.engine.ticker import Ticker
from roseplay.wire.extra import msgspec, zmq
from roseplay.wire.forward_pass import ForwardPassMetrics, encode_forward_pass
from roseplay.wire.kv_publisher import KvEventPublisher
from roseplay.wire.sockets import Publication, endpoint_of
from roseplay.wire.step_sums import StepSums

POLL_S = 0.02
HEARTBEAT_S = 1.0  # without steps
CLOSE_TIMEOUT_S = 5.0
LINGER_MS = 200  # time to send the last messages when closing
_FAILURE = "telemetry could not be published"


class Publishers(AbstractContextManager["Publishers"]):
    """Follows the engine's telemetry in its own thread, so that the engine never waits for a subscriber.

    Events that the telemetry's ring dropped before this thread read them are counted and not sent; messages that a
    subscriber is too slow to read are dropped for that subscriber. Both leave gaps in the messages' numbers.

    Args:
        engine: made with ``kv_events=True`` if these are to be published. It is not kept alive.
        kv_events_port: port for KV events, 0 for any free one; by default they are not published.
        forward_pass_port: port for forward pass metrics, 0 for any free one; by default they are not published.
        host: the address to listen on; by default only this machine can subscribe. There is no password.
        kv_replay_port: port for replays of KV events; by default the one after ``kv_events_port``.
        worker_id: the engine's name in its metrics; by default a random one.
        array_like: write KV events as arrays, as older versions do.

    Attributes:
        kv: publishes KV events; ``None`` without them.
        forward_pass: publishes forward pass metrics; ``None`` without them.
        dropped: number of telemetry events that were not published.

    Raises:
        ValueError: the engine keeps no KV events.
        OSError: cannot listen on a port.
    """

    def __init__(
        self,
        engine: EngineLike,
        kv_events_port: int | None = None,
        forward_pass_port: int | None = None,
        host: str = "127.0.0.1",
        *,
        kv_replay_port: int | None = None,
        worker_id: str | None = None,
        array_like: bool = False,
    ) -> None:
        if kv_events_port is not None and not engine.config.kv_events:
            raise ValueError("this engine keeps no KV events: start it with kv_events=True")
        worker_id = worker_id or f"roseplay-{uuid.uuid4().hex[:8]}"
        self.kv: KvEventPublisher | None = None
        self.forward_pass: ForwardPassPublisher | None = None
        self.dropped = 0
        self._events = engine.telemetry.reader(from_start=True)
        scope = "step_cuda" if engine.info.device.startswith("cuda") else "execute_model_cpu"
        self._sums = StepSums(worker_id, scope)
        self._steps_from = engine.telemetry.next_cursor
        self._context = zmq.Context()
        try:
            if kv_events_port is not None:
                replay_port = (kv_events_port and kv_events_port + 1) if kv_replay_port is None else kv_replay_port
                endpoints = endpoint_of(host, kv_events_port), endpoint_of(host, replay_port)
                self.kv = KvEventPublisher(
                    self._context, *endpoints, block_size=engine.info.block_size, array_like=array_like
                )
            if forward_pass_port is not None:
                endpoint = endpoint_of(host, forward_pass_port)
                self.forward_pass = ForwardPassPublisher(self._context, endpoint, worker_id)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        # From here on only its thread uses the sockets.
        self._ticker = Ticker("roseplay-publishers", self._follow, POLL_S, _FAILURE, at_end=self._end)
        self._ticker.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Publish the remaining events and stop; closing twice is allowed."""
        self._ticker.close(CLOSE_TIMEOUT_S)

    def _follow(self) -> None:
        """Publish the events since the last call; raises the first exception once all others are published."""
        missed, failures = self._events.missed, list[Exception]()
        events = self._events.read()
        self._note_missing(self._events.missed - missed)
        for event in events:
            try:
                self._publish(event)
            except Exception as error:
                failures.append(error)
                self._note_missing(1)
        if self.kv is not None:
            self.kv.serve_replays()
        if self.forward_pass is not None:
            self.forward_pass.beat()
        if failures:
            raise failures[0]

    def _end(self) -> None:
        try:
            self._follow()
        finally:
            self._context.destroy(linger=LINGER_MS)

    def _note_missing(self, count: int) -> None:
        """Count events that were not published, and leave a gap in the messages' numbers."""
        self.dropped += count
        for publisher in (self.kv, self.forward_pass):
            if count and publisher is not None:
                publisher.publication.skip()

    def _publish(self, event: TelemetryEvent) -> None:
        """Publish an event. KV events from before the start are published too, for replays; steps are not."""
        if self.kv is not None and isinstance(event, StepEvent):
            self.kv.publish(event.record.cache_events)
        if self.forward_pass is not None:
            metrics = self._sums.take(event)
            if metrics is not None and event.seq >= self._steps_from:
                self.forward_pass.publish(metrics)


class ForwardPassPublisher:
    """A PUB socket for forward pass metrics. Only one thread may use it at a time."""

    def __init__(self, context: Any, endpoint: str, worker_id: str) -> None:
        self.publication = Publication(context, endpoint)
        self._worker_id = worker_id
        self._sent_at = time.monotonic()

    def publish(self, metrics: ForwardPassMetrics) -> None:
        """Publish a step's metrics under the next number."""
        numbered = msgspec.structs.replace(metrics, counter_id=self.publication.next)
        self.publication.send(encode_forward_pass(numbered))
        self._sent_at = time.monotonic()

    def beat(self) -> None:
        """Publish a heartbeat if nothing was published for ``HEARTBEAT_S``."""
        if time.monotonic() - self._sent_at >= HEARTBEAT_S:
            self.publish(ForwardPassMetrics(worker_id=self._worker_id))
