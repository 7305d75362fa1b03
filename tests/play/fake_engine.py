"""An engine without a model, for tests: an ``EngineLike`` that generates a few words at a fixed pace."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterator
from typing import Any

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.core.request import FinishReason
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.engine_like import Prompt
from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.engine.health import Health
from roseplay.engine.messages import BlockInfo
from roseplay.engine.records import EntryRecord, StepRecord
from roseplay.engine.stream import Listener, Stream
from roseplay.engine.telemetry import KnobEvent, RequestEvent, StepEvent, Telemetry, TokenEvent

WORDS = (
    "A step ",
    "packs prompts ",
    "and answers ",
    "into one row, ",
    "so nobody ",
    "waits <b>long</b> ",
    "für 🌹 ",
    "it. ",
)
INFO = EngineInfo(
    model="fake-chat", architecture="fake", device="cpu", dtype="float32", attention="none", num_parameters=0, weight_bytes=0, vocab_size=100,
    block_size=16, num_blocks=449, max_model_len=2048, kv_bytes_per_token=64, threads=1, host_blocks=4096,
)  # fmt: skip


class Words:
    """A decoder for which token n is the n-th word."""

    def push(self, token_id: int) -> str:
        return WORDS[token_id % len(WORDS)]

    def flush(self) -> str:
        return ""


class FakeEngine:
    """``step()`` makes one step; with ``run=True``, a thread makes them continuously."""

    capabilities = Capabilities()
    client_delay: str | None = None
    detokenizer: Any = Words
    wrong: str | None = None  # why it does not respond

    def __init__(
        self,
        *,
        step_s: float = 0.01,
        run: bool = False,
        max_waiting: int = 4096,
        model: str = INFO.model,
        ids: Iterator[int] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.info, self.knobs, self.tokenizer = dataclasses.replace(INFO, model=model), Knobs(), None
        self.model, self.config, self.paused = model, EngineConfig(), False
        self.memory = FreeMemory(host=64 * 2**30)
        self.telemetry = Telemetry(4096)
        self.clock = clock
        self.streams: dict[int, Stream] = {}
        self.blocks: dict[int, BlockInfo] = {}
        self.next_step: dict[str, Any] = {}  # more fields of the next step's record
        self._left: dict[int, int] = {}
        self._shared: dict[int, int] = {}  # prompt tokens that need not be computed
        self._ids, self._steps = itertools.count(1) if ids is None else ids, itertools.count()
        self._step_s, self._max_waiting = step_s, max_waiting
        self._lock = threading.RLock()
        self._closed = threading.Event()
        if run:
            threading.Thread(target=self._run, daemon=True).start()

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        on_update: Listener | None = None,
        due_ns: int | None = None,
    ) -> Stream:
        params = params or SamplingParams()
        if not self.alive:
            raise EngineError("the engine is closed")
        if (tokens := len(prompt) + params.max_new_tokens) > INFO.max_model_len:
            raise ValueError(f"{tokens} tokens of prompt and answer do not fit {INFO.max_model_len}")
        with self._lock:
            if not self.room:
                raise EngineBusyError(f"{self._max_waiting} requests are already waiting: try again later")
            submitted = self.clock.now_ns()
            token_ids = [token if isinstance(token, int) else 0 for token in prompt]
            stream = Stream(next(self._ids), token_ids, params, self.abort, submitted, on_update, self.detokenizer())
            stream.metrics.due_ns = due_ns
            self.streams[stream.request_id] = stream
            self._left[stream.request_id] = len(prompt)
            self._tell("submitted", stream, submitted)
        return stream

    @property
    def room(self) -> int:
        return max(0, self._max_waiting - self.num_unfinished)

    def abort(self, request_id: int) -> bool:
        with self._lock:
            stream = self.streams.get(request_id)
            if stream is None or stream.finished:
                return False
            self._finish(stream, FinishReason.ABORT)
            return True

    @property
    def num_unfinished(self) -> int:
        return sum(not stream.finished for stream in self.streams.values())

    def abort_all(self) -> int:
        return sum(self.abort(request_id) for request_id in list(self.streams))

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def clear_cache(self) -> None:
        """There is no cache."""

    def free_memory(self, timeout: float = 10.0) -> FreeMemory:
        return self.memory

    def inspect_block(self, block: int, timeout: float = 10.0) -> BlockInfo:
        """Returns what a test has put into ``blocks``. Like the engine, raises if there is no such block."""
        if not 1 <= block < INFO.num_blocks:
            raise ValueError(f"there is no block {block}: they are numbered 1 to {INFO.num_blocks - 1}")
        if not self.alive:
            raise EngineError("the engine is closed")
        return self.blocks.get(block) or BlockInfo(block, "free", [], None, [], -1, False)

    def set_knobs(self, **changes: Any) -> Knobs:
        with self._lock:
            old, self.knobs = self.knobs, self.knobs.changed(changes)
            changed = {k: (getattr(old, k), v) for k, v in changes.items() if getattr(old, k) != v}
            if changed:
                self.telemetry.add(KnobEvent(self.knobs, 0, self.clock.now_ns(), changed))
            return self.knobs

    def close(self, timeout: float = 10.0, *, reason: str | None = None) -> None:
        self._closed.set()
        with self._lock:
            for stream in [one for one in self.streams.values() if not one.finished]:
                self._finish(stream, FinishReason.ABORT if reason is None else FinishReason.ERROR, reason)

    @property
    def alive(self) -> bool:
        return not self._closed.is_set()

    @property
    def overdue(self) -> str | None:
        return self.wrong if self.alive else "the engine is closed"

    def health(self, timeout: float = 1.0) -> Health:
        """Depends on ``wrong``, which a test sets."""
        return Health(self.overdue is None, self.overdue or "ok")

    def step(self, count: int = 1) -> None:
        """Make up to ``count`` steps, each for all requests."""
        for _ in range(count):
            with self._lock:
                live = [s for s in self.streams.values() if not s.finished]
                if live and not self.paused:
                    self._step(live)

    def _step(self, live: list[Stream]) -> None:
        start, budget = self.clock.now_ns(), self.knobs.prefill_max_tokens or 10**9
        running = live[: self.knobs.max_batch_size]
        entries, answering = [], []
        for stream in running:
            if stream.metrics.scheduled_ns is None:
                stream.metrics.scheduled_ns = start
                self._tell("scheduled", stream, start)
            part = min(budget, self._left[stream.request_id])
            budget -= part
            self._left[stream.request_id] -= part
            prefilling = self._left[stream.request_id] > 0
            target = len(stream.prompt_token_ids)
            decode = int(not prefilling and not part)
            computed = target - self._left[stream.request_id]
            shared = self._shared.get(stream.request_id, 0)
            entries.append(EntryRecord(stream.request_id, part, decode, computed, target, cached=0, shared=shared))
            if not prefilling:
                answering.append(stream)
        self._compute(sum(entry.prompt_tokens + entry.decode_tokens for entry in entries))
        tokens = [self._token(stream) for stream in answering]
        record = self._record(start, entries, len(running), len(live) - len(running))
        self.telemetry.add(StepEvent(record, tokens))

    def _compute(self, tokens: int) -> None:
        """Takes no time here."""

    def _token(self, stream: Stream) -> TokenEvent:
        time_ns, last = self.clock.now_ns(), stream.metrics.last_token_ns
        token_id = len(stream.token_ids)
        stream.push(token_id, time_ns)
        stream.notify()
        if last is None:
            self._tell("first_token", stream, time_ns)
        if len(stream.token_ids) >= stream.params.max_new_tokens:
            self._finish(stream, FinishReason.LENGTH)
        return TokenEvent(stream.request_id, token_id, time_ns, None if last is None else time_ns - last)

    def _record(self, start: int, entries: list[EntryRecord], running: int, waiting: int) -> StepRecord:
        active = min(448, sum(entry.computed // 16 + 1 for entry in entries))
        more, self.next_step = self.next_step, {}
        return StepRecord(
            next(self._steps), start_ns=start, end_ns=self.clock.now_ns(), running=running, waiting=waiting,
            prompt_tokens=sum(e.prompt_tokens for e in entries), decode_tokens=sum(e.decode_tokens for e in entries),
            blocks_active=active, blocks_free=448 - active, entries=entries, **more,
        )  # fmt: skip

    def _finish(self, stream: Stream, reason: FinishReason, error: str | None = None) -> None:
        ended = self.clock.now_ns()
        stream.finish(reason, ended, error)
        self._tell("finished", stream, ended)

    def _tell(self, kind: Any, stream: Stream, time_ns: int) -> None:
        """Uses exactly the time in the metrics: a busy machine may be delayed between two reads of the clock."""
        self.telemetry.add(RequestEvent(kind, stream.request_id, time_ns, stream))

    def _run(self) -> None:
        while not self._closed.wait(self._step_s):
            self.step()
