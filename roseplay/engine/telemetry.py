"""A bounded log of events, written by one thread and polled from any.

Definitions, used everywhere (README, page, API and benchmarks): TTFT is first token - submit; ITL is each gap between
two tokens of a request; TPOT is (last - first) / (n - 1); E2E is finish - submit; queue time is first scheduled -
submit.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from roseplay.config import Knobs
from roseplay.engine.records import StepRecord

if TYPE_CHECKING:
    from roseplay.engine.stream import Stream


class Kept(NamedTuple):
    """Which streams of ended requests are kept for readers that poll."""

    # All are kept for this time, several times the interval of the slowest reader that must miss none.
    seconds: float = 1.0
    streams: int = 256  # after that, at most so many, with so many tokens in all
    tokens: int = 1 << 17


KEPT = Kept()


class TokenEvent(NamedTuple):
    """One token as it was published; ``itl_ns`` is ``None`` for a request's first, 0 if it arrived with the one before."""

    request_id: int
    token_id: int
    time_ns: int
    itl_ns: int | None


RequestKind = Literal["submitted", "scheduled", "first_token", "finished"]


class RequestEvent:
    """A request was submitted, scheduled, got its first token, or ended.

    Attributes:
        stream: the request's stream; ``None`` once it has ended and nothing else refers to it, so that a long log does
            not keep thousands of prompts and answers in memory.
    """

    __slots__ = ("_stream", "kind", "request_id", "time_ns")

    def __init__(self, kind: RequestKind, request_id: int, time_ns: int, stream: Stream) -> None:
        self.kind = kind
        self.request_id = request_id
        self.time_ns = time_ns
        self._stream = weakref.ref(stream)

    @property
    def stream(self) -> Stream | None:
        return self._stream()


@dataclass(slots=True)
class StepEvent:
    record: StepRecord
    tokens: list[TokenEvent]


@dataclass(slots=True)
class KnobEvent:
    """New knobs are in effect from ``step_id`` on; ``changed`` maps a name to its old and new value."""

    knobs: Knobs
    step_id: int
    time_ns: int
    changed: dict[str, tuple[Any, Any]]

    @classmethod
    def after(cls, before: Knobs, knobs: Knobs, step_id: int, time_ns: int) -> Self:
        old, new = before.to_dict(), knobs.to_dict()
        return cls(knobs, step_id, time_ns, {name: (old[name], new[name]) for name in new if old[name] != new[name]})


@dataclass(slots=True)
class TokensEvent:
    """Tokens from a server that does not report the steps that computed them; their ids may be unknown (-1)."""

    tokens: list[TokenEvent]


@dataclass(slots=True)
class Load:
    """The load that a server reports in its metrics; ``None`` for what they do not include.

    All but the first three and ``deferred`` and ``awake`` count, of all clients, since the server's start.
    """

    running: Annotated[int | None, "requests", "running, those of other clients included"] = None
    waiting: Annotated[int | None, "requests", "waiting, those of other clients included"] = None
    kv_usage: Annotated[float | None, "", "share of the KV cache that requests hold, 0 to 1"] = None
    prefix_queries: Annotated[int | None, "tokens", "of prompts, looked up in the prefix cache since the start"] = None
    prefix_hits: Annotated[int | None, "tokens", "of those, found there"] = None
    preemptions: Annotated[int | None, "", "since the start"] = None
    generation_tokens: Annotated[int | None, "tokens", "generated"] = None
    computed_tokens: Annotated[int | None, "tokens", "of prompts, computed"] = None
    external_tokens: Annotated[int | None, "tokens", "of prompts, received from other engines or stores"] = None
    steps: Annotated[int | None, "", "of the engine"] = None
    step_tokens: Annotated[int | None, "tokens", "computed in these"] = None
    first_tokens: Annotated[int | None, "", "answers that have begun"] = None
    ttft_s: Annotated[float | None, "s", "until these began, in all"] = None
    gaps: Annotated[int | None, "", "between tokens"] = None
    itl_s: Annotated[float | None, "s", "of these, in all"] = None
    ended: Annotated[int | None, "requests", "that ended"] = None
    queue_s: Annotated[float | None, "s", "that these were queued, in all"] = None
    prefill_s: Annotated[float | None, "s", "from there to their first tokens, in all"] = None
    decode_s: Annotated[float | None, "s", "from there to their last tokens, in all"] = None
    draft_tokens: Annotated[int | None, "tokens", "proposed by speculation"] = None
    accepted_tokens: Annotated[int | None, "tokens", "of these, accepted"] = None
    rejected: Annotated[int | None, "requests", "refused because its queue was full"] = None
    deferred: Annotated[int | None, "requests", "of those waiting, not for a place but for something else"] = None
    awake: Annotated[int | None, "", "engines that do not sleep"] = None

    @classmethod
    def after(cls, step: StepRecord | None, unfinished: int, num_blocks: int) -> Self:
        """Returns the load of an engine after its last step, if it has had one.

        Requests that were submitted since then count as waiting.

        Args:
            unfinished: number of requests.
            num_blocks: those that requests can hold.
        """
        running = 0 if step is None else min(unfinished, step.running)
        held = 0 if step is None or not unfinished else step.blocks_active + step.blocks_shared
        return cls(running, unfinished - running, held / num_blocks)


@dataclass(slots=True)
class LoadEvent:
    """The load of a server at one moment."""

    time_ns: int
    total: Load = field(default_factory=Load)  # the load of all its engines together; KV usage is averaged
    # The load of each engine by name, if there are several behind one address.
    replicas: dict[str, Load] = field(default_factory=dict)


TelemetryEvent = RequestEvent | StepEvent | KnobEvent | TokensEvent | LoadEvent


class Telemetry:
    """The newest events, and the streams of recently ended requests.

    Args:
        capacity: number of events to keep.
        kept: which streams to keep.
        clock: returns the time in seconds, by which streams are kept.
    """

    def __init__(self, capacity: int, kept: Kept = KEPT, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept, self._clock = kept, clock
        self._events: deque[TelemetryEvent] = deque(maxlen=capacity)
        self._next = 0
        self._lock = threading.Lock()
        self._ended: deque[tuple[Stream, int, float]] = deque()  # with its tokens, and when it was added
        self._ended_tokens = 0

    def add(self, event: TelemetryEvent) -> None:
        with self._lock:
            self._events.append(event)
            self._next += 1
            if isinstance(event, RequestEvent) and event.kind == "finished" and event.stream is not None:
                self._keep(event.stream)

    def _keep(self, stream: Stream) -> None:
        """Keep an ended request's stream until enough others have ended after it, and for ``Kept.seconds``."""
        tokens = stream.metrics.prompt_tokens + stream.metrics.completion_tokens
        self._ended.append((stream, tokens, self._clock()))
        self._ended_tokens += tokens
        self._release()

    def _release(self) -> None:
        seconds, streams, most = self._kept
        before = self._clock() - seconds
        while len(self._ended) > streams or (self._ended_tokens > most and len(self._ended) > 1):
            if self._ended[0][2] > before:
                break
            self._ended_tokens -= self._ended.popleft()[1]

    @property
    def next_cursor(self) -> int:
        """The cursor with which ``since`` returns only later events."""
        return self._next

    def since(self, cursor: int) -> tuple[int, list[TelemetryEvent]]:
        """Returns the next cursor, and the events from ``cursor`` on, or from the oldest one that is still kept."""
        with self._lock:
            self._release()
            oldest = self._next - len(self._events)
            return self._next, list(islice(self._events, max(0, cursor - oldest), None))

    def reader(self, *, from_start: bool = False) -> TelemetryReader:
        """Returns a reader of the events from now on, or of those that are still kept as well."""
        return TelemetryReader(self, 0 if from_start else self.next_cursor)


class TelemetryReader:
    """Reads each event once, in order, from number ``cursor`` on. Only one thread at a time may use it."""

    def __init__(self, telemetry: Telemetry, cursor: int) -> None:
        self._telemetry, self._cursor = telemetry, cursor

    def read(self) -> list[TelemetryEvent]:
        """Returns the events since the last call."""
        self._cursor, events = self._telemetry.since(self._cursor)
        return events

    def steps(self) -> list[StepRecord]:
        """Returns the records of the steps since the last call; other events are skipped."""
        return [event.record for event in self.read() if isinstance(event, StepEvent)]
