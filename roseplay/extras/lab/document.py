"""The result of an experiment as a self-contained JSON document: its types, and a check of a file's content."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import FailFast, Field, SkipValidation, TypeAdapter
from typing_extensions import TypedDict

from roseplay.extras.lab.types import ArmName, Count, Limits, MeasuredPoint, Number, Plain, Summary, Text, Varied, Whole
from roseplay.traffic.own_traffic import OwnTraffic

VERSION: Literal[2] = 2
MAX_REPEATS = 20
MAX_POINTS = 32  # values of a sweep


# Start and end in ms; tokens of prompts and of answers; running and waiting requests; blocks in use.
Step = tuple[Number, Number, Count, Count, Count, Count, Count]


class Request(TypedDict):
    """A request of a run; times in ms since the first submit."""

    index: Count
    arrival_ms: Count
    intended_arrival_ms: Number
    prompt_tokens: Count
    completion_tokens: Count
    submit_ms: Count
    queue_ms: Count | None
    ttft_ms: Count | None
    ttft_from_arrival_ms: Count | None
    tpot_ms: Count | None
    e2e_ms: Count | None
    itl_p99_ms: Count | None
    itl_max_ms: Count | None
    reason: Text
    tenant: NotRequired[Text]  # missing for requests without one


class Run(TypedDict):
    """A run of an arm; ``None`` stands for what a server does not report.

    ``itl_ms`` are the gaps after each first token, request by request; 0 for a token that came with the one before.
    """

    arm: ArmName
    repeat: Count
    seconds: Count
    requests: Annotated[list[Request], FailFast()]
    itl_ms: Annotated[list[Count], FailFast()]
    steps: Annotated[list[Step], FailFast()]
    tokens_sha256: Text
    saved_tokens: Count | None
    preemptions: Count | None
    recomputed_tokens: Count | None
    moved_mb: Count | None
    mask_ms: NotRequired[Count]  # median of the steps that had masks of structured outputs, if there were any
    mask_wait_ms: NotRequired[Count]  # of this, the time that the step waited for them
    saturated: NotRequired[bool]  # of a simulated run: whether its times grow with its length


class Simulated(TypedDict):
    """The hardware of a simulated arm with what stands behind its durations, and by how much these may be off.

    ``error_pct`` is ``None`` if that is not known; ``label`` is the evidence in a few words.
    """

    evidence: Text
    label: Text
    error_pct: Count | None


class ArmSettings(TypedDict):
    """The settings of an arm; if there are two arms, also the settings that differ, by name and in words.

    ``server`` is what the arm's server was started with, by the server's own names, if it reports them.
    """

    knobs: Plain
    config: Plain
    server: NotRequired[Plain]
    simulated: NotRequired[Simulated]
    label: NotRequired[Text]
    differs: NotRequired[list[Text]]


class Arms(TypedDict):
    """The arms of an experiment; a search has A only, and a sweep may have B."""

    A: ArmSettings
    B: NotRequired[ArmSettings]


class Traffic(TypedDict):
    """Requests that replace a scenario's; ``traffic.own`` checks them."""

    name: Text
    requests: list[Any]


class Header(TypedDict):
    """What every kind of result has."""

    roseplay_lab: Literal[2]
    id: Text
    name: Text | None
    created: Text
    scenario: Text
    title: Text
    model: Text
    device: Text
    dtype: Text
    environment: Plain
    seed: Number
    repeats: Annotated[int, Field(ge=1, le=MAX_REPEATS, strict=True)]
    max_spread_pct: NotRequired[Annotated[float, Field(ge=0.1, le=100, strict=True)]]
    cpu_time: NotRequired[bool]  # whether times are CPU time
    keep_cache: NotRequired[bool]  # whether runs began with the cache of earlier ones
    params: Plain
    arms: Arms
    traffic: NotRequired[Traffic]
    limits: Limits
    summary: NotRequired[SkipValidation[Summary]]  # computed from the rest, even if a file has one


class ComparisonResult(Header):
    """The result of a comparison: the runs of both arms in their order, with each request and step."""

    kind: Literal["compare"]
    look: list[Text]
    order: list[ArmName]
    runs: list[Run]


class SweepResult(Header):
    """The result of a sweep: the requested values of a setting, and those measured so far, in A and, if it has B, in B."""

    kind: Literal["sweep"]
    setting: Varied
    seconds: NotRequired[Count]
    doubles: NotRequired[bool]  # whether the rate was doubled until no arm kept its limits
    asked: list[Count]
    points: Annotated[list[MeasuredPoint], Field(min_length=1)]
    b_points: NotRequired[Annotated[list[MeasuredPoint], Field(min_length=1)]]


class FindResult(Header):
    """The result of a search: the values it could choose from, where null is no limit, and those tried, in order."""

    kind: Literal["find"]
    setting: Literal["prefill_max_tokens", "max_batch_size"]
    grid: Annotated[list[Whole | None], Field(min_length=1)]
    points: Annotated[list[MeasuredPoint], Field(min_length=1)]


Result = ComparisonResult | SweepResult | FindResult
RESULT: TypeAdapter[Result] = TypeAdapter(Annotated[Result, Field(discriminator="kind")])


def traffic_rows(traffic: OwnTraffic) -> Traffic:
    """Returns the user's own traffic as a result, or an order, has it."""
    return {"name": traffic.name, "requests": [request.row() for request in traffic.requests]}
