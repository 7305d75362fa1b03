"""A server as an engine: the interface of ``Engine``, over any API like OpenAI's."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx

from roseplay.clock import SYSTEM_CLOCK
from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.core.cache_miss import Miss, MissReason
from roseplay.core.info import FreeMemory
from roseplay.core.request import FinishReason
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.engine_like import EngineElsewhere, Prompt
from roseplay.engine.errors import EngineError, EngineStartError
from roseplay.engine.health import Health
from roseplay.engine.lifetime import weakly
from roseplay.engine.stream import Listener
from roseplay.engine.telemetry import KnobEvent, Telemetry
from roseplay.extras.servers.address import ServerAddress, StepsAddress
from roseplay.extras.servers.connection import Connection
from roseplay.extras.servers.control import Control
from roseplay.extras.servers.dialects import UNKNOWN
from roseplay.extras.servers.fields import request_of
from roseplay.extras.servers.live import RemoteStreams
from roseplay.extras.servers.monitor import Monitor
from roseplay.extras.servers.sentences import RefusedError, failure, refusal
from roseplay.extras.servers.server import KNOBS_PATH, attach, knobs_in
from roseplay.extras.servers.stream import HttpStream
from roseplay.extras.servers.timings import USUAL, Timings

if TYPE_CHECKING:
    from roseplay.extras.servers.vllm.probe import Probe

CLOSE_TIMEOUT_S = 5.0
CLEAR_ATTEMPTS = 6


class HttpEngine(EngineElsewhere):
    """A model that a server serves, with the interface of ``Engine``.

    All times are on this process's clock: TTFT is from ``submit`` to the first piece of text that arrived here.
    ``capabilities`` lists what the server cannot report or do, with the reason.

    Args:
        url: of the API, such as ``http://host:8000/v1``.
        model: one that it serves; by default the first that it lists.
        steps: of the probe inside vLLM that tells its steps and takes limits; needs pyzmq.
        config: only ``telemetry_steps`` (how many events are kept) and ``max_waiting`` (the assumed length of the
            server's queue) have an effect.
        timings: timeouts for the server and its replies.
        others: servers with which this one may be compared.

    Attributes:
        lease_s: how long limits of a vLLM with a probe outlive this process; 0 is for good.
        address: the server's address, key and model, as given.
        server: the server's properties, as found while attaching.
        info: as an engine's; unknown values are 0, "" or assumed.
        tokenizer: None: prompts are text, messages or token ids, as the server takes them.

    Raises:
        EngineStartError: the server cannot be reached, refuses the key, or has no such model, or
            there is no such probe; one line says what to do.
    """

    tokenizer = None
    lease_s = 0.0

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        steps: StepsAddress | None = None,
        config: EngineConfig | None = None,
        timings: Timings = USUAL,
        others: Sequence[ServerAddress] = (),
    ) -> None:
        self.others = tuple(others)
        self.clock, self._timings = SYSTEM_CLOCK, timings
        self.config = config or EngineConfig()
        try:
            self._control = Control(url, api_key, timings.reply_s)
        except ValueError as error:
            raise EngineStartError(str(error)) from None
        try:
            self.server = attach(self._control, model, self.clock.now_ns())
        except BaseException:
            self._control.close()
            raise
        self.url = self._control.root
        self.address = ServerAddress(url, api_key, model, steps)
        self.model = self.server.model
        kind = "OpenAI API" if self.server.dialect is UNKNOWN else self.server.dialect.title
        self.info = replace(self.server.info, server=f"{kind} at {self.url.partition('://')[2]}")
        self.telemetry = Telemetry(self.config.telemetry_steps)
        self._knobs = self.server.knobs or Knobs()
        self._ids = itertools.count()
        self._probe: Probe | None = None
        self._lock = threading.Lock()
        self._knob_lock = threading.Lock()
        self._live: RemoteStreams = RemoteStreams(self.telemetry, self.clock, self.server.capabilities)
        counts_chunks = self.server.dialect.counts_chunks
        self._connection = Connection(self._control, self._live, self.clock, timings, counts_chunks=counts_chunks)
        self._monitor = Monitor(
            *(self.server, self._control, self._live, self._connection, self.telemetry, self.clock, timings),
            look_at_knobs=weakly(self._take_knobs),
        )
        try:
            self._probe = None if steps is None else self._attach_probe(steps)
        except BaseException:
            _end(self._monitor, self._connection, None, CLOSE_TIMEOUT_S)
            raise
        if self._probe is not None:
            self.info, self._knobs = self._probe.describe(self.info), self._probe.knobs
        self._forgotten = weakref.finalize(self, _end, self._monitor, self._connection, self._probe, CLOSE_TIMEOUT_S)

    def _attach_probe(self, address: StepsAddress) -> Probe:
        try:
            from roseplay.extras.servers.vllm.probe import Probe
        except ImportError:
            raise EngineStartError("--steps needs pyzmq: pip install 'roseplay[vllm]'") from None
        probe = Probe(
            *(address, self._live, self.telemetry, self.clock, self._timings),
            number=self._ids.__next__,
            changed=weakly(self._take_state),
        )
        if probe.model not in (None, *self.server.models):
            probe.close(CLOSE_TIMEOUT_S)
            raise EngineStartError(f"--steps: {address.url} tells the steps of {probe.model}, not those of {self.url}")
        return probe

    def _take_state(self) -> None:
        """Take over what the probe tells of vLLM: it was started again, or somebody has changed its limits."""
        if self._probe is not None:
            self.info = self._probe.describe(self.info)
            with self._knob_lock:
                self._publish(self._probe.knobs)

    @property
    def capabilities(self) -> Capabilities:
        """What the server is known to report and support; its answers may show more."""
        known = self._live.capabilities
        return known if self._probe is None else self._probe.capabilities(known)

    # -- requests

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        on_update: Listener | None = None,
        due_ns: int | None = None,
    ) -> HttpStream:
        """Send a request and return its stream at once. If the server refuses it, the stream ends with its message.

        Text and token ids are sent to ``/v1/completions``, messages to ``/v1/chat/completions``. ``due_ns`` is also for
        ``client_delay``; see ``EngineLike.submit``.

        Raises:
            ValueError: the prompt is empty or of another kind, or log-probabilities are asked for.
            EngineError: the engine is closed.
        """
        submitted_ns = self.clock.now_ns()
        params = params or SamplingParams()
        path, body = request_of(prompt, params, self.model, self.server.dialect)
        if self._probe is not None and self._probe.on_cpu:
            body.pop("seed", None)  # prompts with one are not split there, see docs/vllm.md
        token_ids = ids if isinstance(ids := body.get("prompt"), list) else []
        stream = HttpStream(next(self._ids), token_ids, params, self.abort, submitted_ns, on_update)
        stream.metrics.due_ns = due_ns
        if self._probe is not None and not self._probe.shares:
            body["cache_salt"], stream.miss = uuid.uuid4().hex, Miss(MissReason.OFF, 0, 0)
        with self._lock:  # otherwise a stream could be added after all have ended
            self._check_alive()
            self._live.add(stream)
            self._connection.start(stream, path, body)
        stream.metrics.accepted_ns = self.clock.now_ns()
        return stream

    def abort(self, request_id: int) -> bool:
        """End a request with ``abort`` by closing its connection; returns false if it is unknown or has ended."""
        if (stream := self._live.get(request_id)) is None:
            return False
        self._connection.cancel(stream)
        return True

    @property
    def room(self) -> int:
        """Number of further requests that may wait, given the assumed length of the server's queue."""
        return max(0, self.config.max_waiting - self._live.num_live)

    # -- steering

    @property
    def knobs(self) -> Knobs:
        """The knobs as last read or set here; the defaults if the server does not report them."""
        return self._knobs

    def set_knobs(self, **changes: Any) -> Knobs:
        """Change knobs of the server; returns all of them.

        Raises:
            ValueError: the server refuses a knob or value, or has no settings that can be changed.
            EngineError: the server does not reply, or the engine is closed.
        """
        self._check_alive()
        self.capabilities.require("knobs")
        if self._probe is not None:
            knobs = self._knobs.changed(changes)
            self.info.check_knobs(knobs, self._knobs)
            if knobs != self._knobs:
                self._probe.set_knobs(knobs, self.lease_s)
                self._take_state()
            return self._knobs
        with self._knob_lock:
            try:
                settings = knobs_in(self._control.patch(KNOBS_PATH, changes))
            except RefusedError as error:
                raise ValueError(str(error)) from None
            except httpx.HTTPError as error:
                raise EngineError(failure(error, self.url)) from None
            if settings is None:
                raise EngineError(f"{self.url} did not report its current settings")
            self._publish(settings)
        return settings

    def _take_knobs(self) -> None:
        """Read the server's settings, since another client may have changed them."""
        if self.server.knobs is None or not self._knob_lock.acquire(blocking=False):
            return
        try:
            if (knobs := knobs_in(self._control.document(KNOBS_PATH))) is not None:
                self._publish(knobs)
        except (httpx.HTTPError, EngineError):
            pass  # ``Monitor`` checks whether the server is there
        finally:
            self._knob_lock.release()

    def _publish(self, found: Knobs) -> None:
        """Take over settings and publish changes; the caller holds the lock."""
        before, self._knobs = self._knobs, found
        if found != before:
            step_id = 0 if self._probe is None else self._probe.next_step
            self.telemetry.add(KnobEvent.after(before, found, step_id, self.clock.now_ns()))

    def clear_cache(self) -> None:
        """Clear the server's prefix cache. Raises ``ValueError`` if there is no way to, ``EngineError`` if it fails."""
        self._check_alive()
        self.capabilities.require("clear_cache")
        for attempt in range(CLEAR_ATTEMPTS):  # some servers refuse briefly after the last answer
            if attempt:
                time.sleep(self._timings.clear_again_s)
            if (refused := self._clear()) is None:
                return
        raise EngineError(refused)

    def _clear(self) -> str | None:
        """Ask the server to clear its cache; returns why it refuses, if it does."""
        if self._probe is not None:
            return None if self._probe.clear_cache() else f"{self.url} does not clear its cache while requests run"
        try:
            reply = self._control.post(str(self.server.clear_path))
        except httpx.HTTPError as error:
            raise EngineError(failure(error, self.url)) from None
        return None if reply.status < 300 else f"{self.url}{self.server.clear_path}: {refusal(*reply)}"

    def free_memory(self, timeout: float = 10.0) -> FreeMemory:
        raise ValueError(f"{self.server.dialect.title} does not report how much memory is free")

    # -- health and life

    def health(self, timeout: float = 1.0) -> Health:
        """Check whether the server reports within ``timeout`` seconds that it is healthy."""
        return Health(False, "the engine is closed") if self._closed else self._monitor.ask(timeout)

    @property
    def overdue(self) -> str | None:
        return "the engine is closed" if self._closed else self._monitor.wrong

    @property
    def client_delay(self) -> str | None:
        return self._connection.lateness.words

    def close(self, timeout: float = CLOSE_TIMEOUT_S, *, reason: str | None = None) -> None:
        """End all requests with ``abort``, or with ``reason`` as the error, and end the threads. Idempotent.

        The server is unaffected.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._forgotten.detach()
        if reason is not None:
            self._connection.end_all(FinishReason.ERROR, reason)
        _end(self._monitor, self._connection, self._probe, timeout)


def _end(monitor: Monitor, connection: Connection, probe: Probe | None, timeout: float) -> None:
    if probe is not None:
        probe.close(timeout)
    monitor.close()
    connection.close(timeout)
