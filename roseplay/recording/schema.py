"""The schema of a recording, and the check of values against it.

The page's reader (``static/replay/recording.js``) gets the same schema and makes the same checks, so that both accept the
same files. A schema is one of:

- ``number``, ``whole``, ``text``, ``flag``: a finite number, an integer, a string (``most``: its length), a boolean
- ``choice``: one of ``values``
- ``scalar``: a number, text, a boolean or null; ``any``: anything
- ``list``: items of one schema; ``row``: a schema for each of its ``columns``, the last of which may be missing
- ``object``: ``fields`` with their schemas; other fields have the schema ``rest``, or any value if there is none

``null``: null is allowed as well. ``optional``: the field may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

from roseplay.config import Knobs
from roseplay.engine.messages import EntryRecord
from roseplay.recording.frame_rows import COLUMNS, StepRow, TokenRow
from roseplay.settings import Number, Setting, Switch, Whole, settings_of

Schema = dict[str, Any]

FORMAT = 1
MARK = "roseplay_recording"  # the header's field that holds the format
MAX_LANES = 8  # of a tab
MAX_BLOCKS = 2**24  # the page keeps nine bytes per block
_MOST = 2**31 - 1  # the page's integer columns are 32 bits wide
_FAR = 1e12  # milliseconds: some thirty years
_LONG_TEXT = 4_000_000
_FAR_SCALAR = 1e15


def _number(least: float = -_FAR, most: float = _FAR, **more: Any) -> Schema:
    return {"type": "number", "least": least, "most": most, **more}


def _whole(least: int = 0, most: int = _MOST, **more: Any) -> Schema:
    return {"type": "whole", "least": least, "most": most, **more}


def _text(most: int = 1000, **more: Any) -> Schema:
    return {"type": "text", "most": most, **more}


def _list(of: Schema, **more: Any) -> Schema:
    return {"type": "list", "of": of, **more}


def _row(columns: dict[str, Schema], missing: int = 0) -> Schema:
    """``missing``: how many of the last columns a row may lack."""
    return {"type": "row", "columns": columns, "missing": missing}


def _object(fields: dict[str, Schema], **more: Any) -> Schema:
    return {"type": "object", "fields": fields, **more}


def _optional(schema: Schema, *names: str) -> dict[str, Schema]:
    return {name: {**schema, "optional": True} for name in names}


_MS = _number(null=True)
_FLAG: Schema = {"type": "flag"}
_ANY: Schema = {"type": "any"}
_SCALAR: Schema = {"type": "scalar", "most": 10_000}

_INFO = _object(
    {
        **dict.fromkeys(("model", "architecture", "device", "dtype", "attention"), _text()),
        **dict.fromkeys(("num_parameters", "weight_bytes", "kv_bytes_per_token"), _whole(0, 10**15)),
        **dict.fromkeys(("vocab_size", "max_model_len", "threads"), _whole()),
        "block_size": _whole(1, 2**16),
        "num_blocks": _whole(1, MAX_BLOCKS),
        **_optional(_whole(), "cuda_graphs"),
        **_optional(_text(null=True), "no_cuda_graphs"),
        **_optional(_whole(null=True), "max_step_tokens"),
    }
)


def _knob(setting: Setting) -> Schema:
    """A knob's value as a recording has it; upper limits may have been others when it was made."""
    values = setting.values
    if isinstance(values, Whole):
        return _whole(values.least or 0, null=bool(values.none))
    if isinstance(values, Number):
        return _number(values.least, _FAR if values.most is None else values.most)
    return _FLAG if isinstance(values, Switch) else _text(100)


_KNOBS = {name: _knob(setting) for name, setting in settings_of(Knobs).items()}
_CHANGES = _object(
    {name: {**_row({"old": schema, "new": schema}), "optional": True} for name, schema in _KNOBS.items()},
    rest=_row({"old": _SCALAR, "new": _SCALAR}),
)
_ABOUT = _object(
    {
        **_optional({"type": "choice", "values": ["lane", "burst", "api"]}, "kind"),
        **_optional(_whole(1, MAX_LANES, null=True), "lane"),
        **_optional(_whole(null=True), "burst"),
        **_optional(_whole(), "prompt_tokens", "computed", "target", "cached", "shared", "tokens"),
        **_optional(_MS, "submitted", "scheduled", "first", "finished"),
        **_optional(_MS, "queue_ms", "ttft_ms", "e2e_ms", "itl_p50"),
        **_optional(_text(100, null=True), "reason"),
        **_optional(_text(_LONG_TEXT, null=True), "error"),
    }
)
_BLOCKS = _list(
    _row({"block": _whole(0, MAX_BLOCKS), "references": _whole(), "owner": _whole(-1), "findable": _whole(0, 1)})
)
_COUNTS = ("requests", "prompt_tokens", "computed", "saved", "blocks_saved", "cached", "shared")
_STATS = _object(
    {
        **_optional(_number(null=True), "tok_s", "running", "waiting", "saved_tokens", "saved_pct", "step"),
        **_optional(_number(null=True), *(f"{of}_p{p}" for of in ("ttft", "itl") for p in (50, 95, 99))),
        **_optional(_number(null=True), *(f"kv_{of}" for of in ("total", "free", "cached", "active", "shared"))),
        **_optional(_object(_optional(_number(0), *_COUNTS), null=True), "in_all"),
    },
    null=True,
)
_BURST = _object(
    {
        "burst": _whole(),
        **dict.fromkeys(("kind", "label"), _text(100)),
        "seed": _number(-1e20, 1e20),
        **dict.fromkeys(("size", "done", "prompt_tokens", "computed", "saved", "blocks_saved"), _whole()),
        **dict.fromkeys(("ttft_p50", "ttft_p95"), _MS),
    },
    null=True,
)
_REQUEST_ID = _whole()
_SNAPSHOT = _object(
    {
        "t": _number(),
        "requests": _list(_row({"request": _REQUEST_ID, "about": _ABOUT})),
        **_optional(
            _list(_row({"request": _REQUEST_ID, "title": _text(_LONG_TEXT), "text": _text(_LONG_TEXT)})), "words"
        ),
        **_optional(_BLOCKS, "blocks"),
        **_optional(_STATS, "stats"),
        **_optional(_BURST, "burst"),
    }
)
# Of rows with named columns; a recording's header may name further ones, in any order.
ROWS: dict[str, dict[str, Schema]] = {
    "steps": {
        **dict.fromkeys(StepRow._fields, _whole()),
        **dict.fromkeys(("t0", "t1", "device_ms", "host_ms"), _number()),
        **dict.fromkeys(("entries", "preempted", "copied"), _list(_REQUEST_ID)),
        "graph": {**_FLAG, "null": True, "optional": True},
    },
    "entries": dict.fromkeys(EntryRecord._fields, _whole()),
    "tokens": {**dict.fromkeys(TokenRow._fields, _whole()), "t": _number(), "itl_ms": _MS},
}
_EVENT = _row(
    {
        "request": _REQUEST_ID,
        "event": {"type": "choice", "values": ["submitted", "scheduled", "first", "finished"]},
        "t": _number(),
        "about": _ABOUT,
    }
)

HEADER = _object(
    {
        "info": _INFO,
        # A recording may be older than a knob; the times in it need slow motion.
        "knobs": _object(
            {name: {**it, "optional": name != "slow_motion"} for name, it in _KNOBS.items()}, rest=_SCALAR
        ),
        "columns": _object(dict.fromkeys(COLUMNS, _list(_text(100))), optional=True),
        "snapshot": _SNAPSHOT,
        **_optional(_object({}, rest=_SCALAR, null=True), "environment"),
        **_optional(_text(), "version", "created", "words"),
    }
)
FRAME = _object(
    {
        "t": _number(),
        "steps": _list({}),  # by ``frame_schema``
        "tokens": _list({}),
        "requests": _list(_EVENT),
        "knobs": _list(_row({"t": _number(), "step": _whole(-1), "changes": _CHANGES})),
        "blocks": _BLOCKS,
        **_optional(_list(_row({"request": _REQUEST_ID, "title": _text(_LONG_TEXT)})), "titles"),
        **_optional(_list(_row({"request": _REQUEST_ID, "index": _whole(), "text": _text(_LONG_TEXT)})), "texts"),
        **_optional(_STATS, "stats"),
        **_optional(_BURST, "burst"),
    }
)


def frame_schema(columns: dict[str, list[str]]) -> Schema:
    """Returns the schema of frames whose rows have these columns.

    Raises:
        ValueError: a column that every row needs is not there.
    """
    rows = {name: _named_row(name, columns[name]) for name in ROWS}
    rows["steps"]["columns"]["entries"] = _list(rows["entries"])
    return {**FRAME, "fields": {**FRAME["fields"], "steps": _list(rows["steps"]), "tokens": _list(rows["tokens"])}}


def _named_row(rows: str, names: list[str]) -> Schema:
    known = ROWS[rows]
    for name, schema in known.items():
        if names.count(name) != 1 and not (schema.get("optional") and name not in names):
            raise ValueError(f"columns, {rows} should have {name!r} once")
    missing = next((i for i, name in enumerate(reversed(names)) if not known.get(name, {}).get("optional")), 0)
    return _row({name: known.get(name, _ANY) for name in names}, missing)


def check(value: Any, schema: Schema) -> None:
    """Raises ``ValueError`` that says where ``value`` does not match, as in ``steps, t0 should be a number``."""
    _check([value], schema, "")


def _check(values: Sequence[Any], schema: Schema, where: str) -> None:
    """Check many values of one schema at once: a recording has millions, most of them in columns of one type."""
    if schema.get("null"):
        values = [value for value in values if value is not None]
    if not values:
        return
    types = set(map(type, values))
    if schema["type"] != "any" and not types <= _TYPES[schema["type"]]:
        raise ValueError(f"{where or 'it'} should be {_words(schema)}")
    within = _WITHIN.get(schema["type"])
    if within:
        within(values, schema, where)


def _in_range(values: Sequence[Any], schema: Schema, where: str) -> None:
    within = schema["least"] <= min(values) and max(values) <= schema["most"]
    if not within or not all(map(math.isfinite, values)):
        raise ValueError(f"{where} should be {_words(schema)}")


def _short(values: Sequence[Any], schema: Schema, where: str) -> None:
    if any(len(value) > schema["most"] for value in values if isinstance(value, str)):
        raise ValueError(f"{where} is longer than {schema['most']:,} characters")
    if any(isinstance(value, int | float) and not abs(value) <= _FAR_SCALAR for value in values):
        raise ValueError(f"{where} should be {_words(schema)}")


def _chosen(values: Sequence[Any], schema: Schema, where: str) -> None:
    if not set(values) <= set(schema["values"]):
        raise ValueError(f"{where} should be {_words(schema)}")


def _listed(values: Sequence[Any], schema: Schema, where: str) -> None:
    _check(list(chain.from_iterable(values)), schema["of"], where)


def _columns(rows: Sequence[Any], schema: Schema, where: str) -> None:
    columns = schema["columns"]
    least, most = len(columns) - schema["missing"], len(columns)
    if not all(least <= len(row) <= most for row in rows):
        raise ValueError(f"{where} should have rows of {most} columns")
    for i, (name, column) in enumerate(columns.items()):
        _check([row[i] for row in rows if len(row) > i], column, f"{where}, {name}")


def _fields(objects: Sequence[Any], schema: Schema, where: str) -> None:
    for name, field in schema["fields"].items():
        path = f"{where}, {name}" if where else name
        found = [one[name] for one in objects if name in one]
        if len(found) < len(objects) and not field.get("optional"):
            raise ValueError(f"{path} is missing")
        _check(found, field, path)
    rest = schema.get("rest")
    if rest:
        others = [(name, value) for one in objects for name, value in one.items() if name not in schema["fields"]]
        if any(len(name) > 200 for name, _ in others):
            raise ValueError(f"{where} has a name longer than 200 characters")
        _check([value for _, value in others], rest, where)


def _words(schema: Schema) -> str:
    """Returns what a value of this schema is, in words."""
    kind = schema["type"]
    if kind in ("number", "whole"):
        noun = "a whole number" if kind == "whole" else "a number"
        return f"{noun} from {schema['least']:,} to {schema['most']:,}"
    if kind == "choice":
        return f"one of {', '.join(schema['values'])}"
    return {
        "text": "text",
        "flag": "true or false",
        "scalar": "a number, text, true, false or null",
        "list": "a list",
        "row": "a list of rows",
        "object": "an object",
    }[kind]


_TYPES: dict[str, set[type]] = {
    "number": {int, float},
    "whole": {int},
    "text": {str},
    "choice": {str},
    "flag": {bool},
    "scalar": {int, float, str, bool, type(None)},
    "list": {list},
    "row": {list},
    "object": {dict},
}
_WITHIN = {
    "number": _in_range,
    "whole": _in_range,
    "text": _short,
    "choice": _chosen,
    "scalar": _short,
    "list": _listed,
    "row": _columns,
    "object": _fields,
}
