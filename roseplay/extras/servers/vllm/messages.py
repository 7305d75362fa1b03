"""The messages of the probe inside vLLM. Times are ns of vLLM's clock, requests have vLLM's ids, and fields that a version
of vLLM lacks keep their defaults. What is not as declared here is refused.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from roseplay.engine.errors import EngineError
from roseplay.extras.servers.shapes import Maybe
from roseplay.formats.text import one_line
from roseplay.recording.schema import MAX_BLOCKS

Count = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
Nanoseconds = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Name = Annotated[str, Field(max_length=512)]
Words = Annotated[str, Field(max_length=1024)]
Setting = Annotated[bool, Field(strict=True)] | Annotated[int, Field(strict=True)] | float | Words
_Hash = Annotated[int, Field(strict=True, ge=0, lt=2**48)]
_Block = Annotated[int, Field(strict=True, ge=0, lt=MAX_BLOCKS)]


class Scheduled(NamedTuple):
    """A request's part in a step: how many tokens it computes, how many were computed before, and its prompt's length."""

    request: Name
    tokens: Count
    before: Count
    prompt: Count
    draft: Count
    accepted: Count


class Admitted(NamedTuple):
    """A request that enters the batch; ``waited_ns`` is the time since its arrival, and ``hashes`` are those of its prompt's
    whole blocks, each with all before it, if that is known."""

    request: Name
    prompt: Count
    cached: Count
    waited_ns: Nanoseconds | None
    priority: Annotated[int, Field(strict=True, gt=-(2**53), lt=2**53)]
    hashes: Annotated[tuple[_Hash, ...], Field(max_length=256)] = ()


class BlockState(NamedTuple):
    """How many requests hold a block, and whether prompts can find it."""

    block: _Block
    references: Count
    findable: Annotated[int, Field(strict=True, ge=0, le=1)]


class Known(NamedTuple):
    """A request that vLLM has when a snapshot is taken."""

    request: Name
    prompt: Count
    computed: Count
    output: Count
    state: Literal["running", "waiting"]
    cached: Count
    blocks: list[_Block]


class Limits(BaseModel):
    """What vLLM's scheduler may do in one step; a threshold of 0 is none. ``prompt_tokens`` is a limit of the probe."""

    max_num_batched_tokens: Count = 0
    max_num_seqs: Count = 0
    long_prefill_token_threshold: Count = 0
    prompt_tokens: Count = 0


class State(BaseModel):
    """The newest message, and what vLLM has after it. ``waiting`` is by vLLM's reason, "" for nothing but room."""

    n: Count
    boot: Name
    step: Count = 0
    running: Count = 0
    waiting: dict[Name, Count] = {}
    free: Maybe[Count] = None
    cached: Maybe[Count] = None


class Step(State):
    """A step; ``output`` begins when its output has come."""

    kind: Literal["step"]
    schedule: tuple[Nanoseconds, Nanoseconds]
    output: tuple[Nanoseconds, Nanoseconds]
    entries: list[Scheduled] = []
    new: list[Admitted] = []
    resumed: list[Name] = []
    blocks: dict[Name, list[_Block]] = {}
    changed: list[BlockState] = []
    ended: list[tuple[Name, Words]] = []
    preempted: list[Name] = []
    tokens: dict[Name, list[int]] = {}


class Notice(BaseModel):
    """The pool is not as told so far (``reset``), there are new limits, or the probe is off."""

    n: Count
    boot: Name
    kind: Literal["reset", "limits", "off"]
    limits: Limits = Limits()
    error: Words = ""


class Snapshot(State):
    """vLLM's state, from which later messages continue; ``missing`` says why fields are not there."""

    now_ns: Nanoseconds
    block_size: Annotated[int, Field(strict=True, ge=1, le=2**16)]
    num_blocks: Maybe[Annotated[_Block, Field(ge=1)]] = None
    limits: Limits
    most: Limits
    missing: dict[Name, Words] = {}
    settings: dict[Name, Maybe[Setting]] = {}
    requests: list[Known] = []
    pool: list[BlockState] = []


class Reply(BaseModel):
    """The reply to any other order."""

    error: Words | None = None
    now_ns: Nanoseconds = 0
    n: Count = 0
    boot: Name = ""
    limits: Limits = Limits()
    cleared: bool = False


_MESSAGE: TypeAdapter[Step | Notice] = TypeAdapter(Annotated[Step | Notice, Field(discriminator="kind")])
_Reply = TypeVar("_Reply", bound=BaseModel)


def message_in(data: bytes) -> Step | Notice:
    """Returns a message; raises ``ValueError`` for anything else."""
    return _MESSAGE.validate_json(data)


def reply_in(data: bytes, kind: type[_Reply]) -> _Reply:
    """Returns the reply to an order; raises ``ValueError`` for a refusal, ``EngineError`` for anything else."""
    try:
        refusal = Reply.model_validate_json(data).error
        if refusal is None:
            return kind.model_validate_json(data)
    except ValidationError as error:
        raise EngineError(f"a reply of the probe in vLLM cannot be read: {one_line(error)}") from None
    raise ValueError(one_line(refusal))
