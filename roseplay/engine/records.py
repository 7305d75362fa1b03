"""What is recorded of a run: steps, their entries, tokens and requests. Each field is declared once, here or in
``core.step.StepCounts``, as ``Annotated[type, unit, description]``.

Derived from it are the rows of frames and recordings (``COLUMNS``), their schema (``recording/schema.py``), tables and
traces (``recording/tables.py``, ``trace.py``), and the page's store and types (``static/shared/records.js``, written by
``python docs/records.py``). A field with a default may be missing in a recording.

The unit ``time`` is ms of the page's clock; ``ms`` is a duration.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from roseplay.core.cache_events import CacheEvent
from roseplay.core.cache_miss import Miss
from roseplay.core.step import StepCounts


class EntryRecord(NamedTuple):
    """One request's part in a step, for timelines and progress bars."""

    request_id: int
    prompt_tokens: Annotated[int, "tokens", "of its prompt, computed in this step"]
    decode_tokens: Annotated[int, "tokens", "of its answer, computed in this step"]
    computed: Annotated[int, "tokens", "of its prompt, in its blocks after the step"]
    target: Annotated[int, "tokens", "of its prompt, that it needs in total"]
    cached: Annotated[int, "tokens", "of those in its blocks, attached from earlier steps"]
    shared: Annotated[int, "tokens", "of those in its blocks, attached from requests of the same step"]


class BlockChange(NamedTuple):
    """A block's new state: how many requests hold it, the first of them (-1: none), and whether prompts can find it
    (1), in a pinned block (2), or not (0)."""

    block: int
    references: int
    owner: int
    findable: int


class StateChange(NamedTuple):
    """The new content of a slot for recurrent states: a running request's state, or one that the prefix cache keeps."""

    slot: int  # number of the slot, from 1; the slots of kept states follow those of requests
    request_id: int  # the request whose state it is, or was; -1 for a free slot
    tokens: int  # number of tokens that a kept state covers; 0 for a running request


@dataclass(slots=True)
class StepFigures(StepCounts):
    """What both the engine and the page know of a step. ``free + cached + active + shared`` is the whole pool."""

    running: Annotated[int, "requests", "running after it"] = 0
    waiting: Annotated[int, "requests", "waiting after it"] = 0
    blocks_free: Annotated[int, "blocks", "free after it"] = 0
    blocks_cached: Annotated[int, "blocks", "held by no request after it, but findable"] = 0
    blocks_active: Annotated[int, "blocks", "held by one request after it"] = 0
    blocks_shared: Annotated[int, "blocks", "held by several requests after it"] = 0
    swapped_out: Annotated[int, "blocks", "copied to host memory for preempted requests"] = 0
    swapped_in: Annotated[int, "blocks", "copied back"] = 0
    state_slots: Annotated[int, "slots", "that requests have after it, of a model with recurrent layers"] = 0
    states_kept: Annotated[int, "states", "that the prefix cache keeps after it"] = 0
    mask_ms: Annotated[float, "ms", "a thread beside the model computed which tokens its grammars allow"] = 0.0
    mask_wait_ms: Annotated[float, "ms", "in which it waited for them"] = 0.0
    replayed: Annotated[bool | None, "", "as a CUDA graph, or on a CPU from a recording; null where no step is"] = None
    entries: Annotated[list[EntryRecord], "", "its requests"] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class StepRecord(StepFigures):
    """Telemetry of one step, in ns of the engine's clock.

    Where steps overlap, a step counts as started when the previous one ended. Fields without a description have the
    same meaning as in ``core.step.Step``.
    """

    start_ns: int
    end_ns: int
    schedule_ns: int = 0  # time on the host, like the three that follow
    prepare_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    device_ns: int = 0  # time on the device; on a CPU it equals ``forward_ns``
    admitted: list[int] = field(default_factory=list)
    held_by: str | None = None
    # Requests that began to compute their prompts, and why the first computed token was not cached.
    misses: list[tuple[int, Miss]] = field(default_factory=list)
    # Blocks whose state has changed since the previous step; with ``new_pool``, since all were free.
    block_changes: list[BlockChange] = field(default_factory=list)
    new_pool: bool = False  # whether the block pool is new, as in a worker's first record
    # What entered and left the prefix cache since the previous record, if ``EngineConfig.kv_events``.
    cache_events: list[CacheEvent] = field(default_factory=list)
    # The slots that have changed since the previous step; all slots in a worker's first record.
    state_changes: list[StateChange] = field(default_factory=list)

    @property
    def host_ns(self) -> int:
        """Time on the host: on a CPU, all but the forward pass; on a GPU, the time to launch the step."""
        if self.device_ns == self.forward_ns:
            return self.end_ns - self.start_ns - self.forward_ns
        return self.schedule_ns + self.prepare_ns + self.forward_ns + self.sample_ns


@dataclass(slots=True, kw_only=True)
class StepRow(StepFigures):
    """One step as the page and recordings have it."""

    t0: Annotated[float, "time", "when it began"]
    t1: Annotated[float, "time", "when it ended"]
    device_ms: Annotated[float, "ms", "time on the device"] = 0.0
    host_ms: Annotated[float, "ms", "time on the host"] = 0.0
    block_copies: Annotated[int, "blocks", "copied because a request wrote to them"] = 0
    limit: Annotated[str | None, "", "what has to change for it to be faster, see recording/step_limit.py"] = None
    usual_batch: Annotated[float | None, "requests", "that steps without prompts computed lately"] = None

    def values(self) -> list[Any]:
        """Returns the row as in JSON, in the order of ``COLUMNS``."""
        return [getattr(self, name) for name in COLUMNS["steps"]]


class TokenRow(NamedTuple):
    """One token as it was published.

    Another server does not report its steps: there, tokens that arrived together share a number.
    """

    request_id: int
    t: Annotated[float, "time", "when it was published"]
    itl_ms: Annotated[float | None, "ms", "since the one before; null for a first token, 0 if they arrived together"]
    step_id: Annotated[int, "", "number of the step that made it"]
    usual_ms: Annotated[float | None, "ms", "the gap that was usual then; null if that is unknown"] = None
    cause: Annotated[str | None, "", "why it was late, if it was; see recording/late_tokens.py"] = None


@dataclass(slots=True)
class MissRecord:
    """Why part of a request's prompt was not cached, as far as all tabs may know; see ``core.cache_miss.Miss``."""

    reason: Annotated[str, "", "one of MissReason, see core/cache_miss.py"]
    found: Annotated[int, "tokens", "that were there"] = 0
    position: Annotated[int | None, "", "of the first token that differs, from 0; null if unknown"] = None
    request: Annotated[int | None, "", "the one that it is compared with"] = None
    step: Annotated[int | None, "", "number of the step in which it was lost"] = None


RequestKind = Literal["lane", "burst", "steady", "own", "api"]


@dataclass(slots=True, kw_only=True, eq=False)
class RequestFacts:
    """Where a request comes from, and how far its prompt is."""

    kind: Annotated[RequestKind, "", "what sent it: traffic of a tab, or a program (api)"] = "api"
    lane: Annotated[int | None, "", "number of its lane in the tab, from 1"] = None
    burst: Annotated[int | None, "", "number of its burst"] = None
    tenant: Annotated[int | None, "", "number of its tenant"] = None
    priority: Annotated[int, "", "its priority"] = 0
    thinking: Annotated[bool, "", "its prompt ends where the model begins to think"] = False
    computed: Annotated[int, "tokens", "of its prompt, in its blocks"] = 0
    target: Annotated[int, "tokens", "of its prompt, that it needs"] = 0
    cached: Annotated[int, "tokens", "of those in its blocks, attached from earlier steps"] = 0
    shared: Annotated[int, "tokens", "of those in its blocks, attached from requests of the same step"] = 0


@dataclass(slots=True, kw_only=True)
class RequestRecord(RequestFacts):
    """What is known of one request. Times are null for what has not happened."""

    prompt_tokens: Annotated[int, "tokens", "in its prompt"] = 0
    arrived: Annotated[float | None, "time", "when it was due; a busy engine may take it later"] = None
    submitted: Annotated[float | None, "time", "when it was submitted"] = None
    scheduled: Annotated[float | None, "time", "when a step first worked on it"] = None
    first: Annotated[float | None, "time", "when its first token came"] = None
    last: Annotated[float | None, "time", "when its newest token came"] = None
    finished: Annotated[float | None, "time", "when it ended"] = None
    queue_ms: Annotated[float | None, "ms", "from its submission until it was scheduled"] = None
    sent_ms: Annotated[float | None, "ms", "until its last byte was sent to another server"] = None
    ttft_ms: Annotated[float | None, "ms", "from its submission until its first token"] = None
    ttft_parts: Annotated[list[float] | None, "ms", "of this: in line, for blocks, for budget, computing"] = None
    e2e_ms: Annotated[float | None, "ms", "from its submission until it ended"] = None
    itl_p50: Annotated[float | None, "ms", "the median gap between its tokens"] = None
    itl_max: Annotated[float | None, "ms", "the longest gap between its tokens"] = None
    tokens: Annotated[int, "tokens", "generated so far"] = 0
    preemptions: Annotated[int, "", "how often it lost its blocks"] = 0
    miss: Annotated[dict[str, Any] | None, "", "why no more of its prompt was cached, from its first token on"] = None
    reason: Annotated[str | None, "", "why it ended"] = None
    error: Annotated[str | None, "", "the error that ended it"] = None


class Column(NamedTuple):
    """A field of a record: its type, unit, description, and its default, or ``MISSING``."""

    kind: Any
    unit: str
    meaning: str
    default: Any


def columns_of(record: Any) -> dict[str, Column]:
    """Returns the fields of a record's type, by name and in order."""
    hints = get_type_hints(record, include_extras=True)
    columns = {}
    for name, default in _defaults(record).items():
        hint = hints[name]
        kind, unit, meaning = get_args(hint) if get_origin(hint) is Annotated else (hint, "", "")
        columns[name] = Column(kind, unit, meaning, default)
    return columns


def _defaults(record: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(record):
        return {name: record._field_defaults.get(name, MISSING) for name in record._fields}
    return {
        declared.name: declared.default if declared.default_factory is MISSING else declared.default_factory()
        for declared in dataclasses.fields(record)
    }


def names_of(record: Any) -> list[str]:
    """Returns the names of a record type's fields, in order."""
    return list(_defaults(record))


FIGURES, FACTS = names_of(StepFigures), names_of(RequestFacts)
ROWS: dict[str, Any] = {"steps": StepRow, "entries": EntryRecord, "tokens": TokenRow}
COLUMNS = {rows: names_of(record) for rows, record in ROWS.items()}
