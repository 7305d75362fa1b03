"""What frames and snapshots have besides rows: figures, messages and captions. ``schema.py`` checks them in recordings,
and ``python docs/records.py`` writes the page's types."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from roseplay.formats.json_schema import list_of, number, object_of, optional, scalar, text
from roseplay.formats.segments import Segments

Fields = dict[str, Any]  # those of a record that differ from its defaults, by name
_Name = Annotated[str, text(100)]
_COUNTS = ("requests", "prompt_tokens", "computed", "saved", "blocks_saved", "cached", "shared")


class Stats(TypedDict, total=False):
    """The figures of the KPI strip, see ``header_figures``; ``in_all`` are ``PrefillTotals``."""

    tok_s: float | None
    running: float | None
    waiting: float | None
    kv_total: float | None
    kv_free: float | None
    kv_cached: float | None
    kv_active: float | None
    kv_shared: float | None
    kv_used: float | None
    saved_tokens: float | None
    saved_pct: float | None
    in_all: Annotated[dict[str, int], object_of(optional(number(0), *_COUNTS), null=True)]
    step: float | None
    saturated: bool


class BurstFigures(TypedDict):
    """A burst's prompt tokens, in all, computed and saved, and its times to first token in ms."""

    burst: int
    kind: _Name
    label: _Name
    size: int
    seed: Annotated[int, number(-1e20, 1e20)]
    answer: NotRequired[int]  # tokens of each
    done: int
    prompt_tokens: int
    computed: int
    saved: int
    cached: NotRequired[int]
    shared: NotRequired[int]
    blocks_saved: int
    ttft_p50: float | None
    ttft_p95: float | None


class Said(TypedDict):
    """One or two captions about a burst, and the one that it is ``compared`` with, or about other traffic."""

    about: Annotated[str, text(20)]
    t: float
    lines: list[Segments]
    figures: NotRequired[list[dict[str, str]]]  # of each line
    burst: NotRequired[int]
    compared: NotRequired[int]


class Ring(TypedDict):
    """What a ring surrounds; ``t``: when it was as the caption says."""

    of: Literal["gap", "step", "preempted", "rows", "element"]
    id: NotRequired[str]
    t: NotRequired[float]
    request: NotRequired[int]
    step: NotRequired[int]
    burst: NotRequired[int]
    requests: NotRequired[list[int]]
    label: NotRequired[str]


class DemoCaption(TypedDict, total=False):
    """A demo's scene, by its number, with its caption; ``over`` alone: none is playing any more."""

    name: _Name
    title: _Name
    scene: int
    scenes: int
    begun: float
    seconds: int  # that the demo takes from then on
    span_ms: int
    caption: Segments
    answers: list[_Name]
    guess: _Name
    figures: dict[str, _Name]
    rings: list[Ring]
    # Numbers of clients, the time in which their first tokens were measured, and after how long these came on average.
    clients: Annotated[list[tuple[int, float, float, str]], list_of(list_of(scalar()))]
    over: bool
