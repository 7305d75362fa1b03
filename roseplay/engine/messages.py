"""The messages between client and worker: commands one way, events the other. Plain picklable data; nothing is shared.

All times are in ns of the engine's clock (see ``roseplay/clock.py``).
"""

from __future__ import annotations

import copy
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from roseplay.config import Knobs, SamplingParams
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.core.progress import Progress
from roseplay.core.request import FinishReason
from roseplay.core.step import TokenLogprobs
from roseplay.engine.records import EntryRecord, StepRecord


@dataclass(slots=True)
class Submit:
    """A new request. To one with a structured output, the worker's inbox adds its matcher, ``compiled``."""

    request_id: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    submitted_ns: int
    grammar_bytes: int = 0  # memory that its compiled grammar takes
    bad_words: list[list[int]] = field(default_factory=list)  # the tokens of each of its bad words
    compiled: Future[Any] | None = None


@dataclass(slots=True)
class End:
    """Abort a request, or end it with ``stop``, as the client has found a stop string."""

    request_id: int
    reason: FinishReason = FinishReason.ABORT


@dataclass(slots=True)
class SetKnobs:
    knobs: Knobs


@dataclass(slots=True)
class ClearCache:
    """Drop every cached block that no request holds, as benchmarks do to start cold."""


@dataclass(slots=True)
class Pause:
    """Schedule no step until another ``Pause`` ends it; other commands are still handled."""

    paused: bool


@dataclass(slots=True)
class Inspect:
    """Ask what is in a block; ``Inspected`` answers with the same ``token``."""

    token: int
    block: int


@dataclass(slots=True)
class InspectMemory:
    """Ask how much memory is free; ``Inspected`` answers with the same ``token``."""

    token: int


@dataclass(slots=True)
class Ping:
    """Ask whether the loop runs; ``Pong`` answers with the same ``token`` between two steps."""

    token: int


@dataclass(slots=True)
class Shutdown:
    pass


Command = Submit | End | SetKnobs | ClearCache | Pause | Inspect | InspectMemory | Ping | Shutdown


@dataclass(slots=True)
class BlockInfo:
    block: int
    state: str  # ``free``, ``cached`` (no holder, still findable), ``active`` (one holder) or ``shared``
    holders: list[int]  # ids of the requests that hold it, in the order in which they took it
    depth: int | None  # its index in its request, from 0; ``None`` for a free block
    token_ids: list[int]  # the tokens in it
    last_use: int  # the last step in which a request held it, -1 for never
    findable: bool  # whether a new prompt could attach it


class NewToken(NamedTuple):  # a tuple: there are many, and each is sent to the client
    request_id: int
    token_id: int
    finish_reason: FinishReason | None = None
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True)
class PromptLogprobs:
    """Log-probabilities of a request's next prompt tokens, from the second on; sent before its first new token."""

    request_id: int
    logprobs: list[TokenLogprobs]


@dataclass(slots=True)
class Finished:
    """A request that ended without a new token: aborted, failed, or ended by the client."""

    request_id: int
    reason: FinishReason
    error: str | None = None


@dataclass(slots=True)
class Ready:
    info: EngineInfo
    knobs: Knobs


@dataclass(slots=True)
class StepOutput:
    """The result of a step: new tokens in request order, requests that ended without one, telemetry, and
    log-probabilities of prompts."""

    tokens: list[NewToken]
    finished: list[Finished]
    record: StepRecord
    published_ns: int
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle tokens and entries as plain tuples: as named tuples, a step of 64 requests took five times as long,
        0.2 ms."""
        record = copy.copy(self.record)
        record.entries = []
        parts = [tuple(token) for token in self.tokens], [tuple(entry) for entry in self.record.entries]
        return _step_output, (*parts, self.finished, record, self.published_ns, self.prompt_logprobs)


def _step_output(
    tokens: list[Any],
    entries: list[Any],
    finished: list[Finished],
    record: StepRecord,
    published_ns: int,
    prompt_logprobs: list[PromptLogprobs],
) -> StepOutput:
    record.entries = [EntryRecord(*entry) for entry in entries]
    return StepOutput([NewToken(*token) for token in tokens], finished, record, published_ns, prompt_logprobs)


@dataclass(slots=True)
class StepStarted:
    """A step has started that should take ``predicted_s`` seconds, including slow motion; not sent for short steps."""

    step_id: int
    predicted_s: float


@dataclass(slots=True)
class KnobsApplied:
    """New knobs are in effect from ``step_id`` on."""

    knobs: Knobs
    step_id: int
    time_ns: int


@dataclass(slots=True)
class Failed:
    """The worker could not start or cannot continue."""

    message: str
    reason: str | None = None  # of an ``EngineStartError``


@dataclass(slots=True)
class Inspected:
    token: int
    info: BlockInfo | FreeMemory


@dataclass(slots=True)
class Pong:
    token: int


Event = Progress | Ready | StepStarted | StepOutput | KnobsApplied | Inspected | Pong | Failed
