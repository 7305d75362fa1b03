"""The schema of a recording, see ``json_schema``."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

from roseplay.config import MAX_TENANT_CHARACTERS, RECOMMENDED, Knobs
from roseplay.core.info import Choice, EngineInfo
from roseplay.engine.records import COLUMNS, ROWS, MissRecord, RequestRecord, StepRow, TokenRow, columns_of
from roseplay.engine.telemetry import Load
from roseplay.engine.ttft_causes import TTFTCauses
from roseplay.formats.json_schema import (
    ANY,
    FAR,
    FLAG,
    Schema,
    choice,
    list_of,
    number,
    object_of,
    of_type,
    optional,
    row,
    scalar,
    text,
    whole,
)
from roseplay.recording.frame import BurstFigures, DemoCaption, Fields, Said, Stats
from roseplay.recording.tenant_numbers import MOST_PRIORITY
from roseplay.settings import Number, Setting, Switch, Whole, settings_of
from roseplay.traffic.pair import Pair

FORMAT = 2
MARK = "roseplay_recording"  # the header's field that holds the format
MAX_LANES = 8  # of a tab
MAX_BLOCKS = 2**24  # the page keeps nine bytes per block
MAX_STATES = 2**20  # of running requests, or kept
_LONG_TEXT = 4_000_000

_SCALAR = scalar()


def _fields(record: Any, limits: dict[str, Schema]) -> dict[str, Schema]:
    """Returns the schemas of a record's fields, of which those with a default are optional.

    Args:
        limits: schemas of fields whose type does not say enough.
    """
    columns = columns_of(record)
    assert limits.keys() <= columns.keys()
    schemas = {name: limits[name] if name in limits else of_type(column.kind) for name, column in columns.items()}
    return {
        name: schema if columns[name].default is MISSING else {**schema, "optional": True}
        for name, schema in schemas.items()
    }


_INFO = object_of(
    _fields(
        EngineInfo,
        {
            **dict.fromkeys(("num_parameters", "weight_bytes", "kv_bytes_per_token", "state_bytes"), whole(0, 10**15)),
            "block_size": whole(1, 2**16),
            "num_blocks": whole(1, MAX_BLOCKS),
            **dict.fromkeys(("state_slots", "state_snapshots"), whole(0, MAX_STATES)),
            "choices": list_of(object_of(_fields(Choice, {}))),
            "knob_limits": object_of(optional(whole(), *settings_of(Knobs))),
            "server_settings": object_of({}, rest=_SCALAR),
            "sampling_defaults": object_of(optional(number(), *RECOMMENDED)),
        },
    )
)


def _knob(setting: Setting) -> Schema:
    """Returns the schema of a knob's value. Recordings may be older: upper limits of whole numbers are not checked."""
    values = setting.values
    if isinstance(values, Whole):
        return whole(values.least or 0, null=bool(values.none))
    if isinstance(values, Number):
        return number(values.least, FAR if values.most is None else values.most)
    return FLAG if isinstance(values, Switch) else text(100)


_KNOBS = {name: _knob(setting) for name, setting in settings_of(Knobs).items()}
_CHANGES = object_of(
    {name: {**row({"old": schema, "new": schema}), "optional": True} for name, schema in _KNOBS.items()},
    rest=row({"old": _SCALAR, "new": _SCALAR}),
)
_ABOUT = object_of(
    _fields(
        RequestRecord,
        {
            "lane": whole(1, MAX_LANES, null=True),
            "priority": whole(-MOST_PRIORITY, MOST_PRIORITY),
            "ttft_parts": {**row(dict.fromkeys(TTFTCauses._fields, number())), "null": True},
            "miss": object_of(_fields(MissRecord, {}), null=True),
            "error": text(_LONG_TEXT, null=True),
        },
    )
)
_BLOCK = {"block": whole(0, MAX_BLOCKS), "references": whole(), "owner": whole(-1), "findable": whole(0, 2)}
_STATE = {"slot": whole(0, 2 * MAX_STATES), "request": whole(-1), "tokens": whole()}
_Blocks = Annotated[list[list[int]], list_of(row({**_BLOCK, "count": whole(1, MAX_BLOCKS)}, missing=1))]
_States = Annotated[list[list[int]], list_of(row(_STATE))]
_COUNTERS = [name for name, column in columns_of(Load).items() if column.kind == int | None]
_LOAD_FIGURES = _fields(Load, dict.fromkeys(_COUNTERS, whole(0, 10**12, null=True)))
_LOAD = object_of(
    {"t": number(), **_LOAD_FIGURES, **optional(object_of({}, rest=object_of(_LOAD_FIGURES)), "replicas")}
)
_REQUEST = {"request": whole()}
_LONG = text(_LONG_TEXT)
_Titles = Annotated[list[tuple[int, str]], list_of(row({**_REQUEST, "title": _LONG}))]
_Texts = Annotated[list[tuple[int, int, str]], list_of(row({**_REQUEST, "index": whole(), "text": _LONG}))]
_Words = Annotated[list[tuple[int, str | None, str]], list_of(row({**_REQUEST, "title": _LONG, "text": _LONG}))]
_Tenants = Annotated[list[tuple[int, str]], list_of(row({**_REQUEST, "tenant": text(MAX_TENANT_CHARACTERS)}))]


class Snapshot(TypedDict):
    """What holds at a time: now, or before a recording's first frame."""

    t: float
    requests: Annotated[list[tuple[int, Fields]], list_of(row({**_REQUEST, "about": _ABOUT}))]
    words: NotRequired[_Words]
    tenants: NotRequired[_Tenants]
    blocks: NotRequired[_Blocks]
    blocks_used: NotRequired[Annotated[int, whole(0, MAX_BLOCKS)]]
    states: NotRequired[_States]
    stats: NotRequired[Stats | None]
    burst: NotRequired[BurstFigures | None]
    absent: NotRequired[dict[str, str]]
    load: NotRequired[Annotated[Fields, _LOAD]]


# Schemas of rows with named columns; a recording's header may name further columns, in any order.
_ROW_LIMITS: dict[str, dict[str, Schema]] = {"steps": {"entries": list_of({})}}  # set by ``frame_schema``
ROW_FIELDS = {rows: _fields(record, _ROW_LIMITS.get(rows, {})) for rows, record in ROWS.items()}


class EventRow(NamedTuple):
    """What became of a request, and what is known of it from then on."""

    request: int
    event: Annotated[str, choice("submitted", "scheduled", "first", "finished")]
    t: float
    about: Annotated[Fields, _ABOUT]


class KnobRow(NamedTuple):
    """Changes of knobs before a step: the old and the new value of each."""

    t: float
    step: Annotated[int, whole(-1)]
    changes: Annotated[dict[str, tuple[Any, Any]], _CHANGES]


class Frame(TypedDict):
    """What is new since the frame before. In JSON, steps and tokens are lists, see ``COLUMNS``."""

    t: float
    steps: Annotated[list[StepRow], list_of({})]  # set by ``frame_schema``
    tokens: Annotated[list[TokenRow], list_of({})]
    requests: list[EventRow]
    knobs: list[KnobRow]
    blocks: _Blocks
    states: NotRequired[_States]
    titles: NotRequired[_Titles]
    texts: NotRequired[_Texts]
    tenants: NotRequired[_Tenants]
    stats: NotRequired[Stats | None]
    burst: NotRequired[BurstFigures | None]
    story: NotRequired[Said | None]
    pair: NotRequired[Pair]
    demo: NotRequired[DemoCaption | None]
    loads: NotRequired[Annotated[list[Fields], list_of(_LOAD)]]
    absent: NotRequired[dict[str, str]]


HEADER = object_of(
    {
        "info": _INFO,
        # A recording may be older than a knob; only slow motion is required, to interpret the times.
        "knobs": object_of(
            {name: {**it, "optional": name != "slow_motion"} for name, it in _KNOBS.items()}, rest=_SCALAR
        ),
        "columns": object_of(dict.fromkeys(COLUMNS, list_of(text(100)))),
        "snapshot": of_type(Snapshot),
        **optional(object_of({}, rest=_SCALAR, null=True), "environment"),
        **optional(text(), "version", "created", "words"),
    }
)
FRAME = of_type(Frame)

# What the page's reader of recordings checks lines against.
READER = {"format": FORMAT, "header": HEADER, "frame": FRAME, "rows": ROW_FIELDS, "most_blocks": MAX_BLOCKS}


def frame_schema(columns: dict[str, list[str]]) -> Schema:
    """Returns the schema of frames whose rows have these columns.

    Raises ``ValueError`` if a required column is missing, or a known one is repeated.
    """
    for name, fields in ROW_FIELDS.items():
        for column, schema in fields.items():
            count = columns[name].count(column)
            if count != 1 and not (schema.get("optional") and count == 0):
                raise ValueError(f"columns, {name} should have {column!r} once")
    rows = {
        name: row({column: fields.get(column, ANY) for column in columns[name]}) for name, fields in ROW_FIELDS.items()
    }
    if "entries" in rows["steps"]["columns"]:
        rows["steps"]["columns"]["entries"] = list_of(rows["entries"])
    return {**FRAME, "fields": {**FRAME["fields"], "steps": list_of(rows["steps"]), "tokens": list_of(rows["tokens"])}}
