"""What client and worker send each other: commands one way, events the other. Plain data, picklable, nothing shared.

All times are of the engine's clock, in ns (see ``roseplay/clock.py``).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from roseplay.config import Knobs, SamplingParams
from roseplay.core.cache_events import CacheEvent
from roseplay.core.cache_miss import Miss
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.core.progress import Progress
from roseplay.core.request import FinishReason
from roseplay.core.step import TokenLogprobs


@dataclass(slots=True)
class Submit:
    request_id: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    submitted_ns: int


@dataclass(slots=True)
class Abort:
    request_id: int


@dataclass(slots=True)
class Finish:
    """The client found a stop string: end the request with ``stop``."""

    request_id: int


@dataclass(slots=True)
class SetKnobs:
    knobs: Knobs


@dataclass(slots=True)
class ClearCache:
    """Drop every cached block that no request holds, as benchmarks do to start cold."""


@dataclass(slots=True)
class Pause:
    """Schedule no step until another ``Pause`` ends it; other commands are handled meanwhile."""

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


Command = Submit | Abort | Finish | SetKnobs | ClearCache | Pause | Inspect | InspectMemory | Ping | Shutdown


@dataclass(slots=True)
class BlockInfo:
    """A block at one moment.

    Attributes:
        state: ``free``, ``cached`` (no holder, still findable), ``active`` (one holder) or ``shared``.
        holders: ids of the requests that hold it, the longest holder first.
        depth: its place in its prompt, from 0; ``None`` for a free block.
        token_ids: its content.
        last_use: the last step in which a request held it, -1 for never.
        findable: whether a new prompt could attach it.
    """

    block: int
    state: str
    holders: list[int]
    depth: int | None
    token_ids: list[int]
    last_use: int
    findable: bool


class NewToken(NamedTuple):  # a tuple: there are many, and each is sent to the client
    request_id: int
    token_id: int
    finish_reason: FinishReason | None = None
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True)
class PromptLogprobs:
    """Log-probabilities of a request's next prompt tokens, from the second one on; all come before its first new token."""

    request_id: int
    logprobs: list[TokenLogprobs]


class EntryRecord(NamedTuple):
    """One request's part in a step, for timelines and progress bars.

    Attributes:
        prompt_tokens, decode_tokens: computed for it in this step.
        computed: prompt tokens in its blocks after the step; ``target``: how many it needs.
        cached, shared: of ``computed``, attached from earlier steps, and from others within their step.
    """

    request_id: int
    prompt_tokens: int
    decode_tokens: int
    computed: int
    target: int
    cached: int
    shared: int


class BlockChange(NamedTuple):
    """A block's new state: how many requests hold it, which one longest (-1: none), and whether a prompt could find it."""

    block: int
    references: int
    owner: int
    findable: bool


class StateChange(NamedTuple):
    """What a slot of a model's recurrent states now has: the state of a running request, or behind those slots one that the
    prefix cache keeps.

    Attributes:
        slot: from 1; those of kept states follow the requests' own.
        request_id: whose state it is, or was; -1: the slot is free.
        tokens: of a kept state, how many tokens it stands for.
    """

    slot: int
    request_id: int
    tokens: int


@dataclass(slots=True)
class StepRecord:
    """Telemetry of one step. Block counts are taken after it; ``free + cached + active + shared`` is the pool.

    ``block_changes`` has the blocks whose state has changed since the previous step, or since all were free where there is a
    ``new_pool``, as in a worker's first record. ``copied`` are the requests that got a copy of a block before they wrote to it
    (copy-on-write). ``misses`` has those that began to compute their prompts, and why the first token of that was not cached.

    Where steps overlap, a step counts as started when the previous one ended. ``prepare_ns``, ``forward_ns`` and
    ``sample_ns`` are the host's time, ``device_ns`` the device's, which on a CPU is ``forward_ns``. ``graph``: whether the
    step was replayed, as a CUDA graph or from a recording; ``None`` where there are none. ``out_of_memory``: steps undone
    before it for lack of memory. ``held_by``: what kept requests waiting, as in ``core.step.Step``. ``cache_events``: what
    entered and left the prefix cache since the previous record, where ``EngineConfig.kv_events`` asks for it.
    ``state_slots`` and ``states_kept``: of a model with recurrent layers, those that requests have and that the prefix cache
    keeps after the step; ``state_changes`` has the slots that have changed since the previous step, a worker's first record all.
    """

    step_id: int
    start_ns: int
    end_ns: int
    prompt_tokens: int
    decode_tokens: int
    cached_tokens: int
    shared_tokens: int
    running: int
    waiting: int
    blocks_free: int
    blocks_cached: int
    blocks_active: int
    blocks_shared: int
    schedule_ns: int
    prepare_ns: int
    forward_ns: int
    sample_ns: int
    device_ns: int
    entries: list[EntryRecord] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)
    misses: list[tuple[int, Miss]] = field(default_factory=list)
    block_changes: list[BlockChange] = field(default_factory=list)
    new_pool: bool = False
    graph: bool | None = None
    out_of_memory: int = 0
    held_by: str | None = None
    cache_events: list[CacheEvent] = field(default_factory=list)
    state_slots: int = 0
    states_kept: int = 0
    state_changes: list[StateChange] = field(default_factory=list)

    @property
    def block_copies(self) -> int:
        return len(self.copied)

    @property
    def host_ns(self) -> int:
        """The host's time: all but the forward on a CPU; on a GPU, the time it took to launch the step."""
        if self.device_ns == self.forward_ns:
            return self.end_ns - self.start_ns - self.forward_ns
        return self.schedule_ns + self.prepare_ns + self.forward_ns + self.sample_ns


@dataclass(slots=True)
class Finished:
    """A request that ended without a new token: aborted, failed, or cut by the client."""

    request_id: int
    reason: FinishReason
    error: str | None = None


@dataclass(slots=True)
class Ready:
    info: EngineInfo
    knobs: Knobs


@dataclass(slots=True)
class StepOutput:
    """The result of a step: new tokens in request order, requests that ended without one, the step's telemetry, and
    log-probabilities of prompts."""

    tokens: list[NewToken]
    finished: list[Finished]
    record: StepRecord
    published_ns: int
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles tokens and entries as plain tuples: as named tuples a step of 64 requests took five times as long, a
        fifth of a millisecond."""
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
    """A step began that is predicted to take ``predicted_s`` seconds, with slow motion; short steps are not announced."""

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
    """The worker could not start or cannot go on; ``user_error``: the user can fix it (model not found, say)."""

    message: str
    user_error: bool = False


@dataclass(slots=True)
class Inspected:
    token: int
    info: BlockInfo | FreeMemory


@dataclass(slots=True)
class Pong:
    token: int


Event = Progress | Ready | StepStarted | StepOutput | KnobsApplied | Inspected | Pong | Failed
