"""What results consist of: names, numbers, the figures of a value, and the rows of a summary."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, PlainValidator
from typing_extensions import TypedDict

from roseplay.formats.invalid import unfit
from roseplay.traffic.pair import Pair

ArmName = Literal["A", "B"]
ARMS: tuple[ArmName, ArmName] = ("A", "B")
PARTS: tuple[Literal["knobs", "config", "server"], ...] = ("knobs", "config", "server")  # of an arm's settings
FAR = 1e12  # limit for times in milliseconds: some thirty years


def _scalar(value: Any) -> Any:
    """Returns a number, text, true, false or null; raises an error for anything else, or if it is too long to show."""
    if (isinstance(value, str) and len(value) <= 2000) or value is None:
        return value
    if isinstance(value, int | float) and abs(value) <= 1e15:
        return value
    raise unfit("a number, text, true, false or null, and not too long")


Text = Annotated[str, Field(max_length=2000, strict=True)]
Number = Annotated[float, Field(ge=-FAR, le=FAR, strict=True)]
Count = Annotated[float, Field(ge=0, le=FAR, strict=True)]
Whole = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]
Scalar = Annotated[float | bool | str | None, PlainValidator(_scalar)]
Plain = dict[Annotated[str, Field(max_length=200)], Scalar]
Kind = Literal["compare", "sweep", "find"]
Varied = Literal["rate_per_s", "prompt_tokens", "prefill_max_tokens", "max_batch_size"]
Value = float | None  # of the varied setting; ``None`` is no limit
_Rate = Literal["output_tokens_per_s", "goodput_req_s", "kept_pct"]
_Latency = Literal["ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p99_ms"]
_Counter = Literal["preemptions", "recomputed_tokens", "moved_mb", "prompt_tokens"]
FigureName = Literal[_Rate, _Latency, _Counter]  # of ``RunFigures``
FindingEntry = dict[str, Any]  # a finding as JSON: its kind, its fields, and its ``words``


class RunFigures(TypedDict):
    """The figures of a run at one value of the varied setting."""

    output_tokens_per_s: Count | None
    goodput_req_s: Count | None
    kept_pct: Count | None
    ttft_p50_ms: Count | None
    ttft_p95_ms: Count | None
    ttft_p99_ms: Count | None
    itl_p50_ms: Count | None
    itl_p99_ms: Count | None
    e2e_p99_ms: Count | None
    preemptions: Count | None
    recomputed_tokens: Count | None
    moved_mb: Count | None
    prompt_tokens: Count
    saturated: NotRequired[bool]


class MeasuredPoint(TypedDict):
    """A value of the varied setting, ``None`` for no limit, and the figures of its runs.

    A search on simulated hardware also has the figures with all durations ``shorter`` and ``longer`` by the error.
    """

    value: Count | None
    requests: Whole
    runs: Annotated[list[RunFigures], Field(min_length=1)]
    shorter: NotRequired[RunFigures]
    longer: NotRequired[RunFigures]


class Limits(TypedDict):
    """The limits in ms: of a request's TTFT and the p99 of its ITLs, for goodput; of a value's TTFT p95 and ITL p99."""

    ttft_ms: Count
    itl_ms: Count


class Spread(TypedDict):
    """Median and range of a figure over the repeats; ``None`` if it could not be measured."""

    median: float | None
    range: list[float | None]


class PointRow(TypedDict):
    """A value in a summary's table, which keeps the limits or not; in a table of two arms, with its arm.

    Of a try, ``misses`` has by how many percent figures exceed their limits, ``within`` the number of runs that keep
    them, and ``close`` the figures of which only some runs do; ``left`` is the range that is searched next.
    """

    value: Value
    kept: bool
    runs: int
    figures: dict[FigureName, Spread]
    requests: NotRequired[int]
    arm: NotRequired[ArmName]
    misses: NotRequired[dict[FigureName, float]]
    within: NotRequired[dict[FigureName, int]]
    close: NotRequired[list[FigureName]]
    left: NotRequired[list[int | None] | None]
    sure: NotRequired[bool]


class Summary(TypedDict, total=False):
    """What follows from a result, by its kind. Points are told by their indices, ``None`` if there is no such point."""

    findings: list[FindingEntry]
    spread: dict[
        str, str | float | None
    ]  # of the ``figure`` that was to become small, and whether this was ``reached``
    metrics: list[dict[str, Any]]  # of a comparison: a ``findings.finding.Row`` for each figure
    same_tokens: bool  # whether all its runs generated the same
    pair: Pair | None  # a picture of both arms
    points: list[PointRow]
    latency: FigureName  # the one that matters in a sweep
    knee: int | None
    peak: int | None
    b: Summary  # the points, knee and peak of B
    answer: int | None
    closest: int | None
    ended: bool
