"""The schema of a recording, see ``json_schema``."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from roseplay.config import MAX_TENANT_CHARACTERS, RECOMMENDED, Knobs
from roseplay.core.info import Choice, EngineInfo
from roseplay.engine.records import COLUMNS, ROWS, MissRecord, RequestRecord, columns_of
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
from roseplay.recording.tenant_numbers import MOST_PRIORITY
from roseplay.settings import Number, Setting, Switch, Whole, settings_of

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
_BLOCKS = list_of(
    row(
        {
            "block": whole(0, MAX_BLOCKS),
            "references": whole(),
            "owner": whole(-1),
            "findable": whole(0, 2),
            "count": whole(1, MAX_BLOCKS),
        },
        missing=1,
    )
)
_STATES = list_of(row({"slot": whole(0, 2 * MAX_STATES), "request": whole(-1), "tokens": whole()}))
_COUNTS = ("requests", "prompt_tokens", "computed", "saved", "blocks_saved", "cached", "shared")
_STATS = object_of(
    {
        **optional(number(null=True), "tok_s", "running", "waiting", "saved_tokens", "saved_pct", "step", "kv_used"),
        **optional(number(null=True), *(f"{name}_p{p}" for name in ("ttft", "itl") for p in (50, 95, 99))),
        **optional(number(null=True), *(f"kv_{state}" for state in ("total", "free", "cached", "active", "shared"))),
        **optional(object_of(optional(number(0), *_COUNTS), null=True), "in_all"),
        **optional(FLAG, "saturated"),
    },
    null=True,
)
_BURST = object_of(
    {
        "burst": whole(),
        **dict.fromkeys(("kind", "label"), text(100)),
        "seed": number(-1e20, 1e20),
        **dict.fromkeys(("size", "done", "prompt_tokens", "computed", "saved", "blocks_saved"), whole()),
        **optional(whole(), "cached", "shared"),
        **dict.fromkeys(("ttft_p50", "ttft_p95"), number(null=True)),
        **optional(whole(), "answer"),
    },
    null=True,
)
_ABSENT = object_of({}, rest=text())
_COUNTERS = [name for name, column in columns_of(Load).items() if column.kind == int | None]
_LOAD_FIGURES = _fields(Load, dict.fromkeys(_COUNTERS, whole(0, 10**12, null=True)))
_LOAD = object_of(
    {"t": number(), **_LOAD_FIGURES, **optional(object_of({}, rest=object_of(_LOAD_FIGURES)), "replicas")}
)
_SENTENCE = list_of(row({"text": text(1000), "style": text(20)}))
_STORY = object_of(
    {"about": text(20), "t": number(), "lines": list_of(_SENTENCE), **optional(whole(), "burst", "compared")}, null=True
)
_GAP = row({"t": number(), "ms": number(0)})
_GAPS = dict.fromkeys(("gaps", "around"), list_of(_GAP))
_STEPS = list_of(row({"t0": number(), "t1": number(), "tokens": whole(0)}))
_SIDE = object_of(
    {
        "title": _SENTENCE,
        **_GAPS,
        "firsts": list_of(number(0)),
        **optional(_GAP, "longest"),
        **optional(_STEPS, "steps"),
        **optional(list_of(number()), "reader"),
        **optional(number(0), "first"),
    }
)
PAIR = object_of(
    {
        "sentence": _SENTENCE,
        **dict.fromkeys(("about", "shows", "longest", "moment", "unit"), text(200)),
        **optional(text(40), "boxes"),
        "sides": row({"before": _SIDE, "after": _SIDE}),
        "figures": list_of(object_of(dict.fromkeys(("title", "before", "after", "unit", "mark"), text(40)))),
    }
)
_DEMO = object_of(
    {
        **optional(text(100), "name", "title", "guess"),
        **optional(list_of(text(100)), "answers"),
        **optional(list_of(list_of(scalar())), "clients"),
        **optional(whole(), "scene", "scenes", "seconds", "span_ms"),
        **optional(number(), "begun"),
        **optional(_SENTENCE, "caption"),
        **optional(object_of({}, rest=text(100)), "figures"),
        **optional(list_of(object_of({}, rest=scalar())), "rings"),
        **optional(FLAG, "over"),
    },
    null=True,
)
_REQUEST_ID = whole()
_TENANTS = list_of(row({"request": _REQUEST_ID, "tenant": text(MAX_TENANT_CHARACTERS)}))
_SNAPSHOT = object_of(
    {
        "t": number(),
        "requests": list_of(row({"request": _REQUEST_ID, "about": _ABOUT})),
        **optional(
            list_of(row({"request": _REQUEST_ID, "title": text(_LONG_TEXT), "text": text(_LONG_TEXT)})), "words"
        ),
        **optional(_TENANTS, "tenants"),
        **optional(_BLOCKS, "blocks"),
        **optional(whole(0, MAX_BLOCKS), "blocks_used"),
        **optional(_STATES, "states"),
        **optional(_STATS, "stats"),
        **optional(_BURST, "burst"),
        **optional(_ABSENT, "absent"),
        **optional(_LOAD, "load"),
    }
)
# Schemas of rows with named columns; a recording's header may name further columns, in any order.
_ROW_LIMITS: dict[str, dict[str, Schema]] = {"steps": {"entries": list_of({})}}  # set by ``frame_schema``
ROW_FIELDS = {rows: _fields(record, _ROW_LIMITS.get(rows, {})) for rows, record in ROWS.items()}
_EVENT = row(
    {
        "request": _REQUEST_ID,
        "event": choice("submitted", "scheduled", "first", "finished"),
        "t": number(),
        "about": _ABOUT,
    }
)

HEADER = object_of(
    {
        "info": _INFO,
        # A recording may be older than a knob; only slow motion is required, to interpret the times.
        "knobs": object_of(
            {name: {**it, "optional": name != "slow_motion"} for name, it in _KNOBS.items()}, rest=_SCALAR
        ),
        "columns": object_of(dict.fromkeys(COLUMNS, list_of(text(100)))),
        "snapshot": _SNAPSHOT,
        **optional(object_of({}, rest=_SCALAR, null=True), "environment"),
        **optional(text(), "version", "created", "words"),
    }
)
FRAME = object_of(
    {
        "t": number(),
        "steps": list_of({}),  # set by ``frame_schema``
        "tokens": list_of({}),
        "requests": list_of(_EVENT),
        "knobs": list_of(row({"t": number(), "step": whole(-1), "changes": _CHANGES})),
        "blocks": _BLOCKS,
        **optional(_STATES, "states"),
        **optional(list_of(row({"request": _REQUEST_ID, "title": text(_LONG_TEXT)})), "titles"),
        **optional(list_of(row({"request": _REQUEST_ID, "index": whole(), "text": text(_LONG_TEXT)})), "texts"),
        **optional(_TENANTS, "tenants"),
        **optional(_STATS, "stats"),
        **optional(_BURST, "burst"),
        **optional(_STORY, "story"),
        **optional(PAIR, "pair"),
        **optional(_DEMO, "demo"),
        **optional(list_of(_LOAD), "loads"),
        **optional(_ABSENT, "absent"),
    }
)

# What the page's reader of recordings checks lines against.
READER = {"format": FORMAT, "header": HEADER, "frame": FRAME, "rows": ROW_FIELDS, "most_blocks": MAX_BLOCKS}


def frame_schema(columns: dict[str, list[str]]) -> Schema:
    """Returns the schema of frames whose rows have these columns.

    Raises:
        ValueError: a required column is missing, or a known one is repeated.
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
