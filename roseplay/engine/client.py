"""The engine's client, the class that programs use: submit, stream, abort, set knobs, close."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.core.progress import STAGES, Progress
from roseplay.core.request import FinishReason
from roseplay.engine import messages, start
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.detokenizer import make_decoder
from roseplay.engine.engine_like import EngineOfStreams, Prompt
from roseplay.engine.errors import EngineBusyError, EngineError, EngineStartError
from roseplay.engine.grammar_checks import checked_request
from roseplay.engine.health import OVERDUE_S, STOPPED_S, Health, PendingPing, Watchdog
from roseplay.engine.lifetime import CLOSE_TIMEOUT_S, Connection, end_forgotten, weakly
from roseplay.engine.prompts import encode_bad_words
from roseplay.engine.receiver import Receiver
from roseplay.engine.stream import Listener, Stream
from roseplay.engine.telemetry import Telemetry
from roseplay.engine.transport import Transport, TransportFactory, WorkerGoneError, start_transport
from roseplay.own_models import without_path

logger = logging.getLogger(__name__)


class Engine(EngineOfStreams):
    """A model that serves many requests at once, from a loop in the background.

    It ends with ``close()``, with the ``with`` block, with the program, or once neither it nor any of its unfinished
    streams is referenced any more.

    Args:
        model: ``"tiny-chat"`` (comes with the package), a directory, GGUF file or hub id, or a transformers model in memory.
        config: settings that are fixed while the engine runs.
        knobs: initial knobs; ``set_knobs`` changes them while the engine runs.
        clock: source of all reported times; only a worker in a thread can use a clock other than the system's.
        cancelled: when it is set, loading the model is abandoned with ``EngineStartError``.
        on_progress: called from this thread as the worker starts, and with each ``Progress`` of the worker.
        import_after: this process imports the tokenizer's libraries only once it is set; a worker process does not
            wait.
        ids: source of request ids; engines that share it never use an id twice.
        start_transport: starts the worker, and its replacement if its process ends.
        open_tokenizer: opens the model's tokenizer.
        settings: fields of ``EngineConfig`` and ``Knobs`` by name, which override ``config`` and ``knobs``.

    Raises:
        EngineStartError: the model was not found or is not supported, or the settings do not fit; one line.
    """

    capabilities = Capabilities()
    client_delay: str | None = None  # see ``HttpEngine``

    def __init__(
        self,
        model: Any = "tiny-chat",
        *,
        config: EngineConfig | None = None,
        knobs: Knobs | None = None,
        clock: Clock = SYSTEM_CLOCK,
        cancelled: threading.Event | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        import_after: threading.Event | None = None,
        ids: Iterator[int] | None = None,
        start_transport: TransportFactory = start_transport,
        open_tokenizer: start.TokenizerOpener = start.open_tokenizer,
        **settings: Any,
    ) -> None:
        self.config, self._knobs = start.apply_settings(config or EngineConfig(), knobs or Knobs(), settings)
        start.check_worker(self.config, model, clock)
        self.model = model  # a name, a path, or a model in memory
        self.clock, self._cancelled = clock, cancelled
        self._start_transport, self._open_tokenizer = start_transport, open_tokenizer
        self._closed = self._paused = False
        self._broken: str | None = None
        self._ids = itertools.count() if ids is None else ids
        self._inspections: dict[int, queue.SimpleQueue[Any]] = {}
        self._ping: PendingPing | None = None
        self._restarting: str | None = None
        self._lock, self._admission, self._knob_lock = threading.RLock(), threading.Lock(), threading.Lock()
        self.telemetry = Telemetry(self.config.telemetry_steps)
        self._watchdog = Watchdog(self.config.step_timeout_s)
        reference = weakref.ref(self)  # the parts of the engine must not keep it alive
        self._live: Receiver = Receiver(self.telemetry, self._knobs, weakly(self._send), clock)
        self.tokenizer: Any = None
        self._connection, self.info = self._start(on_progress, import_after)
        self._watchdog.restarted()
        self._thread = threading.Thread(target=_receive, args=(reference,), name="roseplay-receiver", daemon=True)
        self._thread.start()
        self._exit_hook = weakly(self.close)
        atexit.register(self._exit_hook)
        self._forgotten = weakref.finalize(self, end_forgotten, self._connection, self._exit_hook)
        self._forgotten.atexit = False

    def _start(
        self, on_progress: Callable[[Progress], None] | None, import_after: threading.Event | None
    ) -> tuple[Connection, EngineInfo]:
        """Open the tokenizer and wait for the worker. Only a worker in another process loads at the same time: two
        threads of one process that import the same libraries slow each other down."""

        def opened() -> Any:
            if import_after is not None:
                import_after.wait()
            return self._open_tokenizer(self.model, self.config)

        beside = self.config.worker == "process"
        if not beside:
            self.tokenizer = opened()
        transport = self._start_transport(self.model, self.config, self._knobs, self.clock, on_progress is not None)
        with start.killed_on_error(transport):
            if on_progress is not None:
                on_progress(Progress(STAGES[0]))
            opening = start.OpeningTokenizer(opened) if beside else None
            check = opening.check if opening is not None else lambda: None
            info = start.wait_until_ready(transport, self._cancelled, on_progress, check)
            if opening is not None:
                self.tokenizer = opening.result(self._cancelled)
        return Connection(transport, self._live), info

    # -- requests

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        on_update: Listener | None = None,
        due_ns: int | None = None,
        grammar_bytes: int | None = None,
    ) -> Stream:
        """Enqueue a request and return its stream at once; all model work happens in the worker.

        Args:
            prompt: text, chat messages (``[{"role": "user", "content": "…"}]``), or token ids.
            params: how tokens are chosen and when the answer ends; greedy and 128 tokens by default.
            on_update: called from the receiver thread whenever something arrives for the stream; must return quickly.
            due_ns: when its traffic wanted it to be submitted, for the stream's metrics.
            grammar_bytes: memory that its compiled grammar takes, if another process has checked it.

        Raises:
            ValueError: the prompt is empty or can never fit (``RequestTooLargeError``, with the numbers).
            EngineBusyError: ``max_waiting`` requests are waiting, or the engine is paused with ``blocking`` admission.
            EngineError: the engine is closed or has failed.
        """
        submitted_ns = self.clock.now_ns()
        params = params or SamplingParams()
        self._check_alive()
        token_ids, grammar_bytes = checked_request(prompt, params, self, grammar_bytes)
        bad_words = encode_bad_words(params.bad_words, self.tokenizer)
        request = messages.Submit(next(self._ids), token_ids, params, submitted_ns, grammar_bytes, bad_words)
        if self._knobs.admission == "blocking":
            with self._one_at_a_time():
                stream = self._enqueue(request, on_update)
                while not (stream.wait_for_first_token(start.POLL_S) or self._paused):
                    pass
        else:
            stream = self._enqueue(request, on_update)
        stream.metrics.due_ns, stream.metrics.accepted_ns = due_ns, self.clock.now_ns()
        return stream

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Wait until no other submit is in progress; raises ``EngineBusyError`` while the engine is paused."""
        while True:
            self._check_alive()
            if self._paused:
                raise EngineBusyError(
                    "the engine is paused and admission is blocking: resume it, or use queued admission"
                )
            if self._admission.acquire(timeout=start.POLL_S):
                break
        try:
            yield
        finally:
            self._admission.release()

    def _enqueue(self, request: messages.Submit, on_update: Listener | None) -> Stream:
        token_ids = request.prompt_token_ids
        try:
            decoder = make_decoder(self.tokenizer, token_ids)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in the tokenizer's library is not an Exception
            raise EngineError(f"the answer could not be decoded ({type(error).__name__}: {error})") from error
        submitted_ns = request.submitted_ns
        stream = Stream(request.request_id, token_ids, request.sampling, self.abort, submitted_ns, on_update, decoder)
        with self._lock:  # else a request could be sent after the worker has died and all streams have ended
            self._check_alive()
            if self.room <= 0:
                raise EngineBusyError(f"{self.config.max_waiting} requests are already waiting: try again later")
            if not self._expects_event:
                self._watchdog.heard()
            self._live.add(stream)
            try:
                self._send(request)
            except Exception as error:
                reason = f"the request could not be sent to the engine ({type(error).__name__}: {error})"
                self._live.end(stream, FinishReason.ERROR, reason)
                raise EngineError(reason) from error
        return stream

    @property
    def room(self) -> int:
        """The number of requests that may still join the queue."""
        return max(0, self.config.max_waiting - self._live.num_waiting)

    def _send(self, command: messages.Command) -> None:
        with self._lock:  # a worker that is being replaced takes no commands
            self._transport.send(command)

    def abort(self, request_id: int) -> bool:
        """End a request with the reason ``abort``; returns ``False`` if it is unknown or has ended."""
        if self._live.get(request_id) is None:
            return False
        self._send(messages.End(request_id))
        return True

    # -- steering

    @property
    def knobs(self) -> Knobs:
        return self._knobs

    def set_knobs(self, **changes: Any) -> Knobs:
        """Change knobs from the next step on; returns all of them.

        Raises:
            ValueError: an unknown knob, a bad value, or one that this engine cannot have.
        """
        self._check_alive()
        with self._knob_lock:
            knobs = self._knobs.changed(changes)
            self.info.check_knobs(knobs, self._knobs)
            if knobs != self._knobs:
                if knobs.slow_motion < self._knobs.slow_motion:
                    self._watchdog.heard()  # the worker may have been silent because of the slow motion
                self._knobs = knobs
                self._send(messages.SetKnobs(knobs))
        return knobs

    def clear_cache(self) -> None:
        """Drop all cached blocks that no request holds, so that the next prompts start cold."""
        self._check_alive()
        self._send(messages.ClearCache())

    @property
    def paused(self) -> bool:
        return self._paused

    def pause(self) -> None:
        """Start no further step until ``resume``. New requests wait; aborts and knob changes work as usual.

        Times include the pause: a stream shows it as a gap between two tokens. Pausing twice is allowed.
        """
        self._set_paused(True)

    def resume(self) -> None:
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        with self._lock:
            self._check_alive()
            self._watchdog.heard()  # a paused worker sends nothing; that does not mean that it is frozen
            self._paused = paused
            self._send(messages.Pause(paused))

    def inspect_block(self, block: int, timeout: float = 10.0) -> messages.BlockInfo:
        """Returns the state and content of a KV block, read between two steps.

        Raises:
            ValueError: there is no such block.
            TimeoutError: the worker did not reply within ``timeout`` seconds.
        """
        self._check_alive()
        if not 1 <= block < self.info.num_blocks:
            raise ValueError(f"there is no block {block}: they are numbered 1 to {self.info.num_blocks - 1}")
        return self._inspect(partial(messages.Inspect, block=block), timeout)

    def free_memory(self, timeout: float = 10.0) -> FreeMemory:
        """Returns the free memory of the machine and of the engine's GPU, as its worker sees it.

        Raises:
            TimeoutError: the worker did not reply within ``timeout`` seconds.
        """
        self._check_alive()
        return self._inspect(messages.InspectMemory, timeout)

    def _inspect(self, question: Callable[[int], messages.Inspect | messages.InspectMemory], timeout: float) -> Any:
        """Send a question to the worker and return its reply; raises ``TimeoutError``."""
        token, answer = next(self._ids), queue.SimpleQueue[Any]()
        self._inspections[token] = answer
        try:
            self._send(question(token))
            return answer.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"the engine did not answer within {timeout} s") from None
        finally:
            del self._inspections[token]

    # -- health

    def health(self, timeout: float = 1.0) -> Health:
        """Returns within ``timeout`` seconds whether the engine's loop responds.

        A worker that computes a long step cannot reply, but counts as healthy until it is overdue: after 3 s, or after
        three times the predicted duration of the step.
        """
        with self._lock:
            if self.alive and self._restarting is None:
                if self._ping is None:
                    if not self._expects_event:
                        self._watchdog.heard()
                    self._ping = PendingPing(next(self._ids))
                    self._send(messages.Ping(self._ping.token))
                ping = self._ping
            else:
                ping = None
        answered = ping is not None and ping.answered.wait(timeout)
        if (wrong := self.overdue) is not None:
            return Health(False, wrong)
        return Health(True, "ok" if answered else self._watchdog.doing)

    @property
    def overdue(self) -> str | None:
        if not self.alive:
            return self._broken or "the engine is closed"
        if self._restarting is not None:
            return self._restarting
        stopped_s = self._transport.stopped_for_s()
        if stopped_s > OVERDUE_S:
            return f"the engine's process has not run for {stopped_s:.0f} s"
        return self._watchdog.overdue() if self._expects_event else None

    @property
    def _expects_event(self) -> bool:
        """Whether the worker should be sending events."""
        return self._ping is not None or (self._live.num_live > 0 and not self._paused)

    @property
    def worker_pid(self) -> int | None:
        """The id of the worker's process; ``None`` if the worker is a thread."""
        return self._transport.pid

    # -- life

    @property
    def _transport(self) -> Transport:
        return self._connection.transport

    def close(self, timeout: float = CLOSE_TIMEOUT_S, *, reason: str | None = None) -> None:
        """End all requests with ``abort``, or with ``reason`` as an error, and stop the worker. Closing twice is allowed.

        Args:
            timeout: seconds that the current step may still take; after that a worker process is killed.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._forgotten.detach()
        atexit.unregister(self._exit_hook)
        if reason is not None:
            self._live.end_all(FinishReason.ERROR, reason)
        self._connection.end(timeout)
        if self._thread is not threading.current_thread():
            self._thread.join(2.0)

    @property
    def alive(self) -> bool:
        """Whether the engine accepts requests."""
        return not self._closed and self._broken is None

    def _check_alive(self) -> None:
        if self._broken is not None:
            raise EngineError(self._broken)
        if self._closed:
            raise EngineError("the engine is closed")

    # -- the receiver thread

    def _receive_once(self) -> bool:
        """Handle one event; returns ``False`` if the thread should end."""
        try:
            event = self._transport.receive(start.POLL_S)
        except WorkerGoneError as error:
            return self._worker_gone(str(error))
        except (OSError, ValueError):  # close() has closed the pipe
            return False
        self._watchdog.look(self._expects_event)
        if event is None:
            return self._worker_gone(frozen) if (frozen := self._frozen()) else not self._closed
        self._watchdog.heard()
        if isinstance(event, messages.Failed):
            return self._worker_gone(event.message)
        self._handle(event)
        return not self._closed

    def _handle(self, event: messages.Event) -> None:
        if isinstance(event, messages.StepOutput):
            self._watchdog.step_ended(event.record.step_id)
            self._live.take(event)
        elif isinstance(event, messages.StepStarted):
            self._watchdog.step_started(event.step_id, event.predicted_s)
        elif isinstance(event, messages.KnobsApplied):
            self._live.take_knobs(event)
        elif isinstance(event, messages.Inspected):
            if (answer := self._inspections.get(event.token)) is not None:
                answer.put(event.info)
        elif isinstance(event, messages.Pong) and (ping := self._ping) is not None and ping.token == event.token:
            self._ping = None
            ping.answered.set()

    def _frozen(self) -> str | None:
        """Returns why the worker is considered frozen; ``None`` if it is not."""
        if self._transport.stopped_for_s() > STOPPED_S:
            return f"the engine's process has not run for {STOPPED_S:g} s"
        return self._watchdog.frozen(self._knobs.slow_motion) if self._expects_event else None

    def _worker_gone(self, reason: str) -> bool:
        """End every stream with an error and replace the worker if it is a process; returns whether that worked."""
        with self._lock:
            if self._closed:
                return False
            logger.error("%s", reason)
            self._ping = None
            if not self._transport.replaceable:
                self._break(reason)
                return False
            self._restarting = f"{reason}; a new one is starting"
            self._transport.kill()
            self._paused = False
            self._live.end_all(FinishReason.ERROR, self._restarting)
            self._connection.transport = self._start_transport(self.model, self.config, self._knobs, self.clock, False)
        try:
            self.info = start.wait_until_ready(self._transport, self._cancelled)
        except EngineStartError as error:
            self._break(f"{reason}, and a new one did not start: {without_path(error, self.model)}")
            return False
        self._watchdog.restarted()
        self._restarting = None
        return True

    def _break(self, reason: str) -> None:
        """Give up serving: end every stream with the reason."""
        with self._lock:
            self._broken = f"{reason}; the engine cannot go on: restart it"
            self._transport.kill()
            self._live.end_all(FinishReason.ERROR, self._broken)


def _receive(reference: weakref.ref[Engine]) -> None:
    """Run the receiver thread. It holds the engine only while it handles an event, so an unused engine is collected."""
    while True:
        if (engine := reference()) is None:
            return
        try:
            goes_on = engine._receive_once()
        except BaseException as error:  # else the streams would wait forever
            logger.exception("the engine's receiver failed")
            goes_on = False
            engine._break(f"the engine's receiver failed ({type(error).__name__}: {error})")
        del engine
        if not goes_on:
            return
