"""The engine as its users hold it: submit, stream, abort, set knobs, close."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.config import GPU_KNOBS, EngineConfig, Knobs, SamplingParams
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.core.request import FinishReason
from roseplay.engine.detokenizer import make_decoder
from roseplay.engine.errors import EngineBusyError, EngineError, EngineStartError
from roseplay.engine.health import OVERDUE_S, STOPPED_S, Health, PendingPing, Watchdog
from roseplay.engine.messages import (
    Abort,
    BlockInfo,
    ClearCache,
    Command,
    Event,
    Failed,
    Inspect,
    Inspected,
    InspectMemory,
    KnobsApplied,
    Pause,
    Ping,
    Pong,
    SetKnobs,
    StepOutput,
    StepStarted,
    Submit,
)
from roseplay.engine.prompts import encode_prompt
from roseplay.engine.receiver import Receiver
from roseplay.engine.start import POLL_S, apply_settings, open_tokenizer, wait_until_ready
from roseplay.engine.stream import Listener, Stream
from roseplay.engine.telemetry import Telemetry
from roseplay.engine.transport import Transport, WorkerGoneError, start_transport

logger = logging.getLogger(__name__)

Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]

CLOSE_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Connection:
    """The worker and the streams it feeds: what has to be ended with an engine, however that ends."""

    transport: Transport
    receiver: Receiver

    def end(self, timeout: float) -> None:
        """Stop the worker and end all streams with ``abort``."""
        self.transport.stop(timeout)
        self.receiver.end_all(FinishReason.ABORT, "the engine was closed")


class Engine:
    """A model that serves many requests at once, from a loop in the background.

    It ends with ``close()``, with the ``with`` block, with the program, or when nobody refers to it or to an unfinished
    stream of it any more.

    Args:
        model: ``"tiny-chat"`` (comes with the package), a directory, a hub id, or a transformers model in memory.
        config: what is fixed from start to end.
        knobs: how to begin; ``set_knobs`` changes them while the engine runs.
        clock: of all times that it reports; another than the system's needs the worker in a thread.
        cancelled: once it is set, a model that is still being loaded is given up, with ``EngineStartError``.
        settings: fields of ``EngineConfig`` and ``Knobs`` by name, which win over the two.

    Raises:
        EngineStartError: the model cannot be had or is not supported, or the settings do not fit; one clear line.
    """

    def __init__(
        self,
        model: Any = "tiny-chat",
        *,
        config: EngineConfig | None = None,
        knobs: Knobs | None = None,
        clock: Clock = SYSTEM_CLOCK,
        cancelled: threading.Event | None = None,
        **settings: Any,
    ) -> None:
        self.config, self._knobs = apply_settings(config or EngineConfig(), knobs or Knobs(), settings)
        if self.config.worker == "process" and not isinstance(model, str):
            raise EngineStartError("a model in memory cannot be sent to another process: use worker='thread'")
        if self.config.worker == "process" and clock is not SYSTEM_CLOCK:
            raise EngineStartError("another process has the system's clock: use worker='thread' with your own")
        self.model = model  # a name, a path, or a model in memory
        self.clock = clock
        self._cancelled = cancelled
        self._closed = False
        self._paused = False
        self._broken: str | None = None
        self._ids = itertools.count()
        self._inspections: dict[int, queue.SimpleQueue[Any]] = {}
        self._ping: PendingPing | None = None
        self._restarting: str | None = None
        self._lock = threading.RLock()
        self._admission = threading.Lock()
        self._knob_lock = threading.Lock()
        self.telemetry = Telemetry(self.config.telemetry_steps)
        self._watchdog = Watchdog(self.config.step_timeout_s)
        reference = weakref.ref(self)  # what the engine owns must not keep it alive
        self._receiver = Receiver(self.telemetry, self._knobs, partial(_send_if_alive, reference), clock)
        self.tokenizer = open_tokenizer(model, self.config)
        self._connection = Connection(start_transport(model, self.config, self._knobs, clock), self._receiver)
        self.info: EngineInfo = wait_until_ready(self._transport, self._cancelled)
        self._watchdog.restarted()
        self._thread = threading.Thread(target=_receive, args=(reference,), name="roseplay-receiver", daemon=True)
        self._thread.start()
        self._exit_hook = partial(_close_at_exit, reference)
        atexit.register(self._exit_hook)
        self._forgotten = weakref.finalize(self, _end_forgotten, self._connection, self._exit_hook)
        self._forgotten.atexit = False

    # -- requests

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, *, on_update: Listener | None = None
    ) -> Stream:
        """Enqueue a request and return its stream at once; all model work happens in the worker.

        Args:
            prompt: text, chat messages (``[{"role": "user", "content": "…"}]``), or token ids.
            params: how to choose tokens and when to end; greedy and 128 tokens by default.
            on_update: called from the receiver thread whenever the stream has news; must be quick.

        Raises:
            ValueError: the prompt is empty or can never fit (``RequestTooLargeError``, with the numbers).
            EngineBusyError: ``max_waiting`` requests wait already, or ``admission`` is ``blocking`` and the engine paused.
            EngineError: the engine is closed or cannot go on.
        """
        submitted_ns = self.clock.now_ns()
        params = params or SamplingParams()
        self._check_alive()
        token_ids = encode_prompt(prompt, self.tokenizer, self.info.vocab_size)
        self.info.check_fits(len(token_ids), params.max_new_tokens)
        if self._knobs.admission == "blocking":
            with self._one_at_a_time():
                stream = self._enqueue(token_ids, params, submitted_ns, on_update)
                while not (stream.wait_for_first_token(POLL_S) or self._paused):
                    pass
        else:
            stream = self._enqueue(token_ids, params, submitted_ns, on_update)
        stream.metrics.accepted_ns = self.clock.now_ns()
        return stream

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Wait for the submit before; a pause ends the wait with ``EngineBusyError``, since it may last arbitrarily long."""
        while True:
            self._check_alive()
            if self._paused:
                raise EngineBusyError(
                    "the engine is paused and admission is blocking: resume it, or use queued admission"
                )
            if self._admission.acquire(timeout=POLL_S):
                break
        try:
            yield
        finally:
            self._admission.release()

    def _enqueue(
        self, token_ids: list[int], params: SamplingParams, submitted_ns: int, on_update: Listener | None
    ) -> Stream:
        try:
            decoder = make_decoder(self.tokenizer, token_ids)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in the tokenizer's library is no Exception
            raise EngineError(f"the answer could not be decoded ({type(error).__name__}: {error})") from error
        request_id = next(self._ids)
        stream = Stream(request_id, token_ids, params, decoder, self.abort, submitted_ns, on_update)
        with self._lock:  # else a request could be sent to a worker after all streams were ended with its death
            self._check_alive()
            if self._receiver.num_waiting >= self.config.max_waiting:
                raise EngineBusyError(f"{self.config.max_waiting} requests wait already: try again later")
            if not self._expects_event:
                self._watchdog.heard()
            self._receiver.add(stream)
            try:
                self._send(Submit(request_id, token_ids, params, submitted_ns))
            except Exception as error:
                reason = f"the request could not be sent to the engine ({type(error).__name__}: {error})"
                self._receiver.end(stream, FinishReason.ERROR, reason)
                raise EngineError(reason) from error
        return stream

    def _send(self, command: Command) -> None:
        with self._lock:  # a worker that is being replaced takes no commands
            self._transport.send(command)

    def abort(self, request_id: int) -> bool:
        """End a request with ``abort``; False when it is unknown or has ended."""
        if self._receiver.get(request_id) is None:
            return False
        self._send(Abort(request_id))
        return True

    def abort_all(self) -> int:
        """End every live request; returns how many there were."""
        return sum(self.abort(stream.request_id) for stream in self._receiver.live())

    # -- steering

    @property
    def knobs(self) -> Knobs:
        return self._knobs

    def set_knobs(self, **changes: Any) -> Knobs:
        """Change knobs from the next step on; returns all of them.

        Raises:
            ValueError: unknown knob, bad value, or a knob that this device does not have.
        """
        self._check_alive()
        with self._knob_lock:
            knobs = self._knobs.changed(changes)
            has_gpu = self.info.device.startswith("cuda") or self.info.cuda_graphs > 0
            for name in GPU_KNOBS:
                if getattr(knobs, name) != getattr(self._knobs, name) and not has_gpu:
                    raise ValueError(f"{name} needs a CUDA device; this engine runs on {self.info.device}")
            if knobs != self._knobs:
                self._knobs = knobs
                self._send(SetKnobs(knobs))
        return knobs

    def clear_cache(self) -> None:
        """Forget all cached prompts, so that what follows starts cold."""
        self._check_alive()
        self._send(ClearCache())

    @property
    def paused(self) -> bool:
        return self._paused

    def pause(self) -> None:
        """Compute nothing from the next step on. Requests are taken and wait; aborts and knobs act as ever.

        Token times are not corrected: a stream has one gap as long as the pause. Pausing twice is fine.
        """
        self._set_paused(True)

    def resume(self) -> None:
        """Go on after ``pause``."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        with self._lock:
            self._check_alive()
            self._watchdog.heard()  # the silence of a pause is no sign of a frozen worker
            self._paused = paused
            self._send(Pause(paused))

    def inspect_block(self, block: int, timeout: float = 10.0) -> BlockInfo:
        """What is in a KV block right now, as seen between two steps.

        Raises:
            ValueError: there is no such block.
            TimeoutError: the worker did not come to it within ``timeout`` seconds.
        """
        self._check_alive()
        if not 1 <= block < self.info.num_blocks:
            raise ValueError(f"there is no block {block}: they are numbered 1 to {self.info.num_blocks - 1}")
        info: BlockInfo = self._inspect(partial(Inspect, block=block), timeout)
        return info

    def free_memory(self, timeout: float = 10.0) -> FreeMemory:
        """Memory that is free beside this engine, on the machine and on the engine's GPU, as its worker sees it.

        Raises:
            TimeoutError: the worker did not come to it within ``timeout`` seconds.
        """
        self._check_alive()
        memory: FreeMemory = self._inspect(InspectMemory, timeout)
        return memory

    def _inspect(self, question: Callable[[int], Inspect | InspectMemory], timeout: float) -> Any:
        """Have a question answered between two steps; raises ``TimeoutError``."""
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
        """Ask through the engine's loop whether it runs; returns within ``timeout`` seconds.

        A worker that computes a long step cannot answer and is well all the same, until it is overdue: by 3 s, or by three
        times what the step is predicted to take.
        """
        with self._lock:
            if self.alive and self._restarting is None:
                if self._ping is None:
                    if not self._expects_event:
                        self._watchdog.heard()
                    self._ping = PendingPing(next(self._ids))
                    self._send(Ping(self._ping.token))
                ping = self._ping
            else:
                ping = None
        answered = ping is not None and ping.answered.wait(timeout)
        wrong = self.overdue
        if wrong is not None:
            return Health(False, wrong)
        return Health(True, "ok" if answered else self._watchdog.doing)

    @property
    def overdue(self) -> str | None:
        """What is wrong with the engine, in one line, as far as that is known without asking it; None while it is well."""
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
        """Whether an event from the worker is due."""
        return self._ping is not None or (self._receiver.num_live > 0 and not self._paused)

    @property
    def worker_pid(self) -> int | None:
        """The worker's process; None where it is a thread of this one."""
        return self._transport.pid

    # -- life

    @property
    def _transport(self) -> Transport:
        return self._connection.transport

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """End all requests with ``abort`` and stop the worker. Closing twice is fine.

        Args:
            timeout: seconds for the step under way; after them a worker process is killed.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._forgotten.detach()
        atexit.unregister(self._exit_hook)
        self._connection.end(timeout)
        if self._thread is not threading.current_thread():
            self._thread.join(2.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return not self._closed and self._broken is None

    def _check_alive(self) -> None:
        if self._broken is not None:
            raise EngineError(self._broken)
        if self._closed:
            raise EngineError("the engine is closed")

    # -- the receiver thread

    def _receive_once(self) -> bool:
        """Handle one event; False when the thread shall end."""
        try:
            event = self._transport.receive(POLL_S)
        except WorkerGoneError as error:
            return self._worker_gone(str(error))
        except (OSError, ValueError):  # the pipe was closed under us, by close()
            return False
        self._watchdog.look(self._expects_event)
        if event is None:
            frozen = self._frozen()
            return self._worker_gone(frozen) if frozen else not self._closed
        self._watchdog.heard()
        if isinstance(event, Failed):
            return self._worker_gone(event.message)
        self._handle(event)
        return not self._closed

    def _handle(self, event: Event) -> None:
        if isinstance(event, StepOutput):
            self._watchdog.step_ended(event.record.step_id)
            self._receiver.take(event)
        elif isinstance(event, StepStarted):
            self._watchdog.step_started(event.step_id, event.predicted_s)
        elif isinstance(event, KnobsApplied):
            self._receiver.take_knobs(event)
        elif isinstance(event, Inspected):
            answer = self._inspections.get(event.token)
            if answer is not None:
                answer.put(event.info)
        elif isinstance(event, Pong):
            ping = self._ping
            if ping is not None and ping.token == event.token:
                self._ping = None
                ping.answered.set()

    def _frozen(self) -> str | None:
        """Why no answer is to be expected of the worker any more, None while there is hope."""
        if self._transport.stopped_for_s() > STOPPED_S:
            return f"the engine's process has not run for {STOPPED_S:g} s"
        return self._watchdog.frozen(self._knobs.slow_motion) if self._expects_event else None

    def _worker_gone(self, reason: str) -> bool:
        """The worker is dead or frozen: every stream ends with ``error``; a process is replaced, a thread cannot be."""
        with self._lock:
            if self._closed:
                return False
            logger.error("%s", reason)
            self._ping = None
            if not self._transport.replaceable:
                self._break(reason)
                return False
            self._restarting = f"{reason}; a new one starts"
            self._transport.kill()
            self._paused = False
            self._receiver.end_all(FinishReason.ERROR, self._restarting)
            self._connection.transport = start_transport(self.model, self.config, self._knobs, self.clock)
        try:
            self.info = wait_until_ready(self._transport, self._cancelled)
        except EngineStartError as error:
            self._break(f"{reason}, and a new one did not start: {error}")
            return False
        self._watchdog.restarted()
        self._restarting = None
        return True

    def _break(self, reason: str) -> None:
        """Nothing can be served any more: end every stream with the reason."""
        with self._lock:
            self._broken = f"{reason}; the engine cannot go on, restart it"
            self._transport.kill()
            self._receiver.end_all(FinishReason.ERROR, self._broken)


def _receive(reference: weakref.ref[Engine]) -> None:
    """The receiver thread: holds the engine only while it handles an event, so that a forgotten engine ends."""
    while True:
        engine = reference()
        if engine is None:
            return
        try:
            goes_on = engine._receive_once()
        except BaseException as error:  # else the streams would wait for ever
            logger.exception("the engine's receiver failed")
            goes_on = False
            engine._break(f"the engine's receiver failed ({type(error).__name__}: {error})")
        del engine
        if not goes_on:
            return


def _send_if_alive(reference: weakref.ref[Engine], command: Command) -> None:
    engine = reference()
    if engine is not None:
        engine._send(command)


def _close_at_exit(reference: weakref.ref[Engine]) -> None:
    engine = reference()
    if engine is not None:
        engine.close()


def _end_forgotten(connection: Connection, exit_hook: partial[None]) -> None:
    """Nobody refers to the engine any more; ending its worker may take a step, and this thread may be anybody's."""
    atexit.unregister(exit_hook)
    threading.Thread(target=connection.end, args=(CLOSE_TIMEOUT_S,), name="roseplay-end", daemon=True).start()
