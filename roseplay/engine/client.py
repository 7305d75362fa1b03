"""The engine as its users hold it: submit, stream, abort, set knobs, close."""

from __future__ import annotations

import atexit
import itertools
import logging
import queue
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Self

from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.core.budget import check_fits
from roseplay.core.info import EngineInfo
from roseplay.core.request import FinishReason
from roseplay.engine.detokenizer import make_decoder
from roseplay.engine.errors import EngineBusyError, EngineError, EngineStartError
from roseplay.engine.messages import (
    Abort,
    BlockInfo,
    ClearCache,
    Command,
    Failed,
    Finish,
    Inspect,
    Inspected,
    KnobsApplied,
    Pause,
    SetKnobs,
    StepOutput,
    Submit,
)
from roseplay.engine.prompts import encode_prompt
from roseplay.engine.receiver import Receiver
from roseplay.engine.start import POLL_S, apply_settings, open_tokenizer, wait_until_ready
from roseplay.engine.stream import Listener, Stream, now_ns
from roseplay.engine.telemetry import Telemetry
from roseplay.engine.transport import WorkerGoneError, start_transport

logger = logging.getLogger(__name__)

Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]

GPU_KNOBS = ("cuda_graphs", "overlap")


class Engine:
    """A model that serves many requests at once, from a loop in the background.

    Args:
        model: ``"tiny-chat"`` (comes with the package), a directory, a hub id, or a transformers model in memory.
        config: what is fixed from start to end.
        knobs: how to begin; ``set_knobs`` changes them while the engine runs.
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
        cancelled: threading.Event | None = None,
        **settings: Any,
    ) -> None:
        self.config, self._knobs = apply_settings(config or EngineConfig(), knobs or Knobs(), settings)
        if self.config.worker == "process" and not isinstance(model, str):
            raise EngineStartError("a model in memory cannot be sent to another process: use worker='thread'")
        self._model = model
        self._cancelled = cancelled
        self._closed = False
        self._paused = False
        self._broken: str | None = None
        self._ids = itertools.count()
        self._inspections: dict[int, queue.SimpleQueue[BlockInfo]] = {}
        self._lock = threading.RLock()
        self._admission = threading.Lock()
        self._knob_lock = threading.Lock()
        self.telemetry = Telemetry(self.config.telemetry_steps)
        self._receiver = Receiver(self.telemetry, self._knobs, self._finish_at)
        self.tokenizer = open_tokenizer(model, self.config)
        self._transport = start_transport(model, self.config, self._knobs)
        self.info: EngineInfo = wait_until_ready(self._transport, self._cancelled)
        self._thread = threading.Thread(
            target=_receive, args=(weakref.ref(self),), name="roseplay-receiver", daemon=True
        )
        self._thread.start()
        self._atexit = weakref.WeakMethod(self.close)
        atexit.register(_close_at_exit, self._atexit)

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
            EngineBusyError: ``max_waiting`` requests wait already.
            EngineError: the engine is closed or cannot go on.
        """
        submitted_ns = now_ns()
        params = params or SamplingParams()
        self._check_alive()
        token_ids = encode_prompt(prompt, self.tokenizer, self.info.vocab_size)
        check_fits(
            len(token_ids),
            params.max_new_tokens,
            self.info.max_model_len,
            self.info.num_blocks - 1,
            self.info.block_size,
        )
        if self._knobs.admission == "blocking":
            with self._admission:
                stream = self._enqueue(token_ids, params, submitted_ns, on_update)
                stream.wait_for_first_token()
        else:
            stream = self._enqueue(token_ids, params, submitted_ns, on_update)
        stream.metrics.accepted_ns = now_ns()
        return stream

    def _enqueue(
        self, token_ids: list[int], params: SamplingParams, submitted_ns: int, on_update: Listener | None
    ) -> Stream:
        decoder = make_decoder(self.tokenizer, token_ids)
        request_id = next(self._ids)
        stream = Stream(request_id, token_ids, params, decoder, self.abort, submitted_ns, on_update)
        with self._lock:  # else a request could be sent to a worker whose death has just been told to all streams
            self._check_alive()
            if self._receiver.num_waiting >= self.config.max_waiting:
                raise EngineBusyError(f"{self.config.max_waiting} requests wait already: try again later")
            self._receiver.add(stream)
            self._send(Submit(request_id, token_ids, params, submitted_ns))
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

    def _finish_at(self, request_id: int) -> None:
        self._send(Finish(request_id))

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
            for name in GPU_KNOBS:
                if getattr(knobs, name) != getattr(self._knobs, name) and not self._has_gpu:
                    raise ValueError(f"{name} needs a CUDA device; this engine runs on {self.info.device}")
            if knobs != self._knobs:
                self._knobs = knobs
                self._send(SetKnobs(knobs))
        return knobs

    @property
    def _has_gpu(self) -> bool:
        return self.info.device.startswith("cuda") or self.info.cuda_graphs > 0

    def clear_cache(self) -> None:
        """Forget all cached prompts, so that what follows starts cold."""
        self._check_alive()
        self._send(ClearCache())

    @property
    def paused(self) -> bool:
        return self._paused

    def pause(self) -> None:
        """Compute nothing from the next step on. Requests are taken and wait; aborts and knobs act as ever.

        Token times are not mended: who streams sees one gap as long as the pause. Pausing twice is fine.
        """
        self._set_paused(True)

    def resume(self) -> None:
        """Go on after ``pause``."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        with self._lock:
            self._check_alive()
            self._receiver.alive()  # the silence of a pause is no sign of a frozen worker
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
        token, answer = next(self._ids), queue.SimpleQueue[BlockInfo]()
        self._inspections[token] = answer
        try:
            self._send(Inspect(token, block))
            return answer.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"the engine did not answer within {timeout} s") from None
        finally:
            del self._inspections[token]

    # -- life

    def close(self, timeout: float = 10.0) -> None:
        """End all requests with ``abort`` and stop the worker. Closing twice is fine.

        Args:
            timeout: seconds for the step under way; after them a worker process is killed.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._transport.stop(timeout)
        self._receiver.end_all(FinishReason.ABORT, "the engine was closed")
        if self._thread is not threading.current_thread():
            self._thread.join(2.0)
        atexit.unregister(_close_at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def model(self) -> Any:
        """What it was made of: a name, a path, or a model in memory."""
        return self._model

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
        if isinstance(event, StepOutput):
            self._receiver.take(event)
        elif isinstance(event, KnobsApplied):
            self._receiver.take_knobs(event)
        elif isinstance(event, Inspected):
            answer = self._inspections.get(event.token)
            if answer is not None:
                answer.put(event.info)
        elif isinstance(event, Failed):
            return self._worker_gone(event.message)
        elif (
            event is None
            and not self._paused
            and self._receiver.silent_for_s > self.config.step_timeout_s * self._knobs.slow_motion
        ):
            return self._worker_gone(f"the engine gave no sign of life for {self.config.step_timeout_s:g} s")
        return not self._closed

    def _worker_gone(self, reason: str) -> bool:
        """The worker is dead or frozen: every stream ends with ``error``; a process is replaced, a thread cannot be."""
        if self._closed:
            return False
        logger.error("%s", reason)
        with self._lock:
            if not self._transport.replaceable:
                self._broken = f"{reason}; the engine cannot go on, restart it"
                self._transport.kill()
                self._receiver.end_all(FinishReason.ERROR, self._broken)
                return False
            self._transport.kill()
            self._paused = False
            self._receiver.end_all(FinishReason.ERROR, f"{reason}; a new one starts")
            self._transport = start_transport(self._model, self.config, self._knobs)
        try:
            self.info = wait_until_ready(self._transport, self._cancelled)
        except EngineStartError as error:
            with self._lock:
                self._broken = f"{reason}, and a new one did not start: {error}"
                self._receiver.end_all(FinishReason.ERROR, self._broken)
            return False
        self._receiver.alive()
        return True


def _receive(reference: weakref.ref[Engine]) -> None:
    """The receiver thread: holds the engine only while it handles an event, so that a forgotten engine ends."""
    while True:
        engine = reference()
        if engine is None or not engine._receive_once():
            return
        del engine


def _close_at_exit(method: weakref.WeakMethod[Any]) -> None:
    close = method()
    if close is not None:
        close()
