"""The messages between client and worker: commands one way, events the other. Plain picklable data; nothing is shared.

All times are in ns of the engine's clock (see ``roseplay/clock.py``).
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


Command = Submit | Abort | Finish | SetKnobs | ClearCache | Pause | Inspect | InspectMemory | Ping | Shutdown


@dataclass(slots=True)
class BlockInfo:
    """A block at one moment.

    Attributes:
        state: ``free``, ``cached`` (no holder, still findable), ``active`` (one holder) or ``shared``.
        holders: ids of the requests that hold it, in the order in which they took it.
        depth: its index in its request, from 0; ``None`` for a free block.
        token_ids: the tokens in it.
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
    """Log-probabilities of a request's next prompt tokens, from the second on; sent before its first new token."""

    request_id: int
    logprobs: list[TokenLogprobs]


class EntryRecord(NamedTuple):
    """One request's part in a step, for timelines and progress bars.

    Attributes:
        prompt_tokens, decode_tokens: tokens computed for it in this step.
        computed: prompt tokens in its blocks after the step.
        target: prompt tokens that it needs in total.
        cached, shared: how many of ``computed`` were attached from earlier steps, and from requests of the same step.
    """

    request_id: int
    prompt_tokens: int
    decode_tokens: int
    computed: int
    target: int
    cached: int
    shared: int


class BlockChange(NamedTuple):
    """A block's new state: how many requests hold it, the first of them (-1: none), and whether prompts can find it
    (1), in a pinned block (2), or not (0)."""

    block: int
    references: int
    owner: int
    findable: int


class StateChange(NamedTuple):
    """The new content of a slot for recurrent states: a running request's state, or one that the prefix cache keeps.

    Attributes:
        slot: number of the slot, from 1; the slots of kept states follow those of requests.
        request_id: the request whose state it is, or was; -1 for a free slot.
        tokens: number of tokens that a kept state covers; 0 for a running request.
    """

    slot: int
    request_id: int
    tokens: int


@dataclass(slots=True)
class StepRecord:
    """Telemetry of one step. Block counts are taken after it; ``free + cached + active + shared`` is the whole pool.

    Where steps overlap, a step counts as started when the previous one ended. Fields without a description have the
    same meaning as in ``core.step.Step`` and ``StepResult``.

    Attributes:
        prepare_ns, forward_ns, sample_ns: time on the host.
        device_ns: time on the device; on a CPU it equals ``forward_ns``.
        copied: requests that got a copy of a block before they wrote to it (copy-on-write).
        swapped_out, swapped_in: numbers of blocks copied to host memory for preempted requests, and back.
        misses: requests that began to compute their prompts, and why the first computed token was not cached.
        block_changes: blocks whose state has changed since the previous step; with ``new_pool``, since all were free.
        new_pool: whether the block pool is new, as in a worker's first record.
        graph: whether the step was replayed, as a CUDA graph or from a recording; ``None`` where there are none.
        out_of_memory: number of steps that were undone before this one for lack of memory.
        cache_events: what entered and left the prefix cache since the previous record, if ``EngineConfig.kv_events``.
        state_slots, states_kept: for a model with recurrent layers, the slots that requests have, and the states that
            the prefix cache keeps, after the step.
        state_changes: the slots that have changed since the previous step; all slots in a worker's first record.
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
    draft_tokens: int = 0
    accepted_tokens: int = 0
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
    recomputed_tokens: int = 0
    swapped_out: int = 0
    swapped_in: int = 0

    @property
    def block_copies(self) -> int:
        return len(self.copied)

    @property
    def host_ns(self) -> int:
        """Time on the host: on a CPU, all but the forward pass; on a GPU, the time to launch the step."""
        if self.device_ns == self.forward_ns:
            return self.end_ns - self.start_ns - self.forward_ns
        return self.schedule_ns + self.prepare_ns + self.forward_ns + self.sample_ns


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
    """The worker could not start or cannot continue. ``user_error``: the user can fix it (say, model not found)."""

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
