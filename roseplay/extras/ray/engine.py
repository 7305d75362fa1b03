"""Replicas as one engine: the interface that the API's application needs, over a handle of Ray Serve."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from roseplay.clock import SYSTEM_CLOCK
from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.core.info import FreeMemory
from roseplay.core.request import FinishReason
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.engine_like import EngineElsewhere, Prompt
from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.engine.grammar_checks import checked_request
from roseplay.engine.health import Health
from roseplay.engine.live_streams import LiveStreams
from roseplay.engine.loop_thread import LoopThread
from roseplay.engine.stream import Listener
from roseplay.engine.telemetry import Telemetry
from roseplay.extras.ray.failures import may_be_sent_again, what_failed
from roseplay.extras.ray.messages import NO_CHANGES, About, KnobChanges, Part
from roseplay.extras.ray.remote_stream import RemoteStream
from roseplay.extras.ray.replica_figures import ReplicaFigures
from roseplay.extras.ray.reports import Report

logger = logging.getLogger(__name__)

ANSWER_S = 10.0  # timeout of commands to all replicas
_CLOSED = "the engine was closed"
HEARD_S = 3.0  # a part that came this recently shows that a replica is running


class RayEngine(EngineElsewhere):
    """Takes requests as an ``Engine`` does and passes them to replicas.

    Prompts are encoded here, so that the router can compare them with the replicas' caches; answers come decoded. A
    request whose replica dies is sent to another one if no token has come, otherwise it ends with ``error``.

    Args:
        handle: of the deployment of ``Replica``.
        about: one replica's description of its engine.
        config: of each replica's engine.
        tokenizer: of the model; None if it has none.
        most_replicas: factor for the limit of waiting requests.
    """

    capabilities = Capabilities.without(
        {
            **dict.fromkeys(("blocks", "steps"), "steps and blocks of replicas are not sent here"),
            "pause": "replicas cannot be paused",
            "inspect": "blocks of replicas cannot be read from here",
        }
    )
    client_delay: str | None = None
    model: Any = None

    def __init__(
        self, handle: Any, about: About, config: EngineConfig, tokenizer: Any | None, most_replicas: int
    ) -> None:
        self.info, self.config, self.tokenizer, self.clock = about.info, config, tokenizer, SYSTEM_CLOCK
        self.telemetry = Telemetry(config.telemetry_steps)
        self._handle = handle
        self._generate = handle.options(stream=True).generate
        self._knobs, self._changes = about.knobs, NO_CHANGES
        self._max_waiting = config.max_waiting * most_replicas
        self._ids = itertools.count()
        self._name = uuid.uuid4().hex
        self._live = LiveStreams[RemoteStream](self.telemetry, self.clock)
        self._heard_at = float("-inf")
        self._lock = threading.Lock()
        self._loop = LoopThread("roseplay-ray")

    # -- requests

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        on_update: Listener | None = None,
        due_ns: int | None = None,
    ) -> RemoteStream:
        """Send a request to a replica and return its stream at once; raises the errors of ``Engine.submit``."""
        submitted_ns = self.clock.now_ns()
        params = params or SamplingParams()
        token_ids, grammar_bytes = checked_request(prompt, params, self)
        with self._lock:
            self._check_alive()
            if self.room <= 0:
                raise EngineBusyError(f"{self._max_waiting} requests are already waiting: try again later")
            stream = RemoteStream(next(self._ids), token_ids, params, self.abort, submitted_ns, on_update)
            stream.grammar_bytes = grammar_bytes
            self._live.add(stream)
            stream.call = self._loop.start(self._follow(stream))
        stream.call.add_done_callback(partial(self._ended, stream))  # one that is cancelled early does not even begin
        stream.metrics.due_ns, stream.metrics.accepted_ns = due_ns, self.clock.now_ns()
        return stream

    @property
    def room(self) -> int:
        return max(0, self._max_waiting - self._live.num_waiting)

    def abort(self, request_id: int) -> bool:
        stream = self._live.get(request_id)
        return stream is not None and stream.call is not None and stream.call.cancel()

    async def _follow(self, stream: RemoteStream) -> None:
        """Send a request to a replica, and to another one if that fails early. The stream has ended when this returns;
        if this raises, ``_ended`` ends it."""
        while (failure := await self._send(stream)) is not None:
            if not may_be_sent_again(failure, stream.sendings, len(stream.token_ids)):
                logger.warning("request %d failed: %s", stream.request_id, what_failed(failure))
                self._live.end(stream, FinishReason.ERROR, what_failed(failure))
                return
            logger.warning("request %d goes to another replica (%s)", stream.request_id, type(failure).__name__)

    async def _send(self, stream: RemoteStream) -> Exception | None:
        """Read the parts that a replica sends, for this stream and others; returns what failed before the stream's end."""
        stream.sendings += 1
        items = self._generate.remote(
            stream.prompt_token_ids, stream.params, stream.grammar_bytes, self._changes, self._name, stream.request_id
        )
        failure: Exception = EngineError("the replica ended the answer without saying why")
        try:
            async for item in items:
                for request_id, part in item:
                    self._take(request_id, part)
        except asyncio.CancelledError:
            items.cancel()  # aborts the request in the replica
            raise
        except Exception as error:
            failure = error
        return None if self._live.get(stream.request_id) is None else failure

    def _take(self, request_id: int, part: Part) -> None:
        stream = self._live.get(request_id)
        if stream is None:  # aborted
            return
        is_first = not stream.token_ids and bool(part.token_ids)
        is_last = part.finish_reason is not None
        now_ns = self.clock.now_ns()
        self._heard_at = time.monotonic()
        if part.scheduled_ns is not None:
            self._live.scheduled(stream, max(stream.metrics.submitted_ns, now_ns - part.scheduled_ns))
        if is_last and not self._live.leave(stream):  # before its listeners learn of the end
            return
        stream.take(part, now_ns)
        if is_first:
            self._live.first_token(stream, now_ns)
        if is_last:
            self._live.ended(stream, now_ns)

    def _ended(self, stream: RemoteStream, call: Future[None]) -> None:
        """Called on any thread when a call has ended; ends the stream if the call has not done so."""
        if call.cancelled():
            self._live.end(stream, FinishReason.ABORT, _CLOSED if self._closed else None)
        elif (failure := call.exception()) is not None:  # the call could not be sent
            self._live.end(stream, FinishReason.ERROR, what_failed(failure))

    # -- steering and health

    @property
    def knobs(self) -> Knobs:
        return self._knobs

    def set_knobs(self, **changes: Any) -> Knobs:
        """Change knobs of all replicas, including later ones; raises the errors of ``Engine.set_knobs``."""
        with self._lock:
            self._check_alive()
            knobs = self._knobs.changed(changes)
            self.info.check_knobs(knobs, self._knobs)
            if knobs == self._knobs:
                return knobs
            values: Mapping[str, Any] = {**self._changes.values, **changes}
            self._knobs, self._changes = knobs, KnobChanges(time.time(), dict(values))
        for answer in self._ask_all("apply", self._changes, timeout_s=ANSWER_S):
            if isinstance(answer, BaseException):  # its next request brings them
                logger.warning("a replica did not take new knobs: %s", what_failed(answer))
        return knobs

    def clear_cache(self) -> None:
        """Clear the replicas' prefix caches; raises ``EngineError`` if closed, or if that takes over ``ANSWER_S``."""
        self._ask_all("clear_cache", timeout_s=ANSWER_S)

    def free_memory(self, timeout: float = 10.0) -> FreeMemory:
        raise ValueError("replicas do not say how much memory is free")

    @property
    def overdue(self) -> str | None:
        return "the engine is closed" if self._closed else None

    def health(self, timeout: float = 1.0) -> Health:
        """Check whether at least one replica's loop responds within ``timeout`` seconds."""
        try:
            polls = self._ask_all("health", timeout / 2, timeout_s=timeout)
        except EngineError as error:
            return Health(self.alive and time.monotonic() - self._heard_at < HEARD_S, str(error))
        healthy = [answer for answer in polls if not isinstance(answer, BaseException)]
        if not healthy:
            return Health(False, what_failed(polls[0]) if polls else "no replica is running")
        return Health(True, "ok" if len(healthy) == len(polls) else f"{len(healthy)} of {len(polls)} replicas respond")

    def reports(self, timeout_s: float = 2.0) -> list[Report]:
        """Returns the metrics of each replica that answers; raises ``EngineError`` after ``timeout_s``."""
        return self._figures("report", timeout_s)

    def replicas(self, timeout_s: float = 2.0) -> list[ReplicaFigures]:
        """Returns the figures of each replica that answers, by label; raises ``EngineError`` after ``timeout_s``."""
        return sorted(self._figures("figures", timeout_s), key=lambda figures: figures.engine)

    def _figures(self, method: str, timeout_s: float) -> list[Any]:
        answers = self._ask_all(method, timeout_s=timeout_s)
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    def _ask_all(self, method: str, *args: Any, timeout_s: float) -> list[Any]:
        """Call a method of all replicas; returns each one's result or exception.

        Raises ``EngineError`` if the engine is closed, or if a replica does not answer in time.
        """
        self._check_alive()
        try:
            return list(self._handle.broadcast(method, *args).results(timeout_s=timeout_s, return_exceptions=True))
        except TimeoutError:
            raise EngineError(f"not all replicas answered within {timeout_s:g} s") from None

    # -- life

    def close(self, timeout: float = 5.0, *, reason: str | None = None) -> None:
        """End all requests with ``abort``, or with ``reason`` as the error. Replicas keep running. Idempotent."""
        with self._lock:
            self._closed = True
        if reason is not None:
            self._live.end_all(FinishReason.ERROR, reason)
        self._loop.close(timeout)  # once cancelled calls have notified their replicas
        self._live.end_all(FinishReason.ABORT, _CLOSED)  # of calls that have not ended in time
