"""The shape of a recording, as data, and the check of values against it.

The page's reader (``static/recording.js``) gets the same data and checks the same things, so that a file which one of them
refuses is refused by the other. A shape is one of:

- ``number``, ``whole``, ``text``, ``flag``: a finite number, an integer, a string (``most``: its length), a boolean
- ``choice``: one of ``values``
- ``scalar``: a number, text, a boolean or null
- ``list`` of one shape; ``row``: a list whose ``columns`` have shapes of their own, of which the last may be missing
- ``object``: ``fields`` with their shapes; other fields have the shape ``rest``, or any where there is none

``null``: null will do too. ``optional``: the field may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

from roseplay.recording.frame_rows import EntryRow, StepRow, TokenRow

Shape = dict[str, Any]

FORMAT = 1
MARK = "roseplay_recording"  # the header's field that holds the format
MAX_LANES = 8  # of a tab
MAX_BLOCKS = 2**24  # the page keeps nine bytes for each
_MOST = 2**31 - 1  # what the page's columns of integers hold
_FAR = 1e12  # milliseconds: some thirty years
_LONG_TEXT = 4_000_000
_FAR_SCALAR = 1e15


def _number(least: float = -_FAR, most: float = _FAR, **more: Any) -> Shape:
    return {"type": "number", "least": least, "most": most, **more}


def _whole(least: int = 0, most: int = _MOST, **more: Any) -> Shape:
    return {"type": "whole", "least": least, "most": most, **more}


def _text(most: int = 1000, **more: Any) -> Shape:
    return {"type": "text", "most": most, **more}


def _list(of: Shape, **more: Any) -> Shape:
    return {"type": "list", "of": of, **more}


def _row(columns: dict[str, Shape], missing: int = 0) -> Shape:
    """``missing``: how many of the last columns a row may lack."""
    return {"type": "row", "columns": columns, "missing": missing}


def _object(fields: dict[str, Shape], **more: Any) -> Shape:
    return {"type": "object", "fields": fields, **more}


def _optional(shape: Shape, *names: str) -> dict[str, Shape]:
    return {name: {**shape, "optional": True} for name in names}


_MS = _number(null=True)
_FLAG: Shape = {"type": "flag"}
_SCALAR: Shape = {"type": "scalar", "most": 10_000}

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
_LIMITS = ("prefill_max_tokens", "prefill_max_batch_size", "step_max_tokens")
_SWITCHES = (
    "chunked_prefill",
    "prefix_cache",
    "same_step_sharing",
    "batched_append",
    "cuda_graphs",
    "overlap",
)
_KNOBS = {
    "max_batch_size": _whole(1),
    **dict.fromkeys(_LIMITS, _whole(1, null=True)),
    **dict.fromkeys(_SWITCHES, _FLAG),
    "admission": _text(100),
    "slow_motion": _number(1, 1000),
}
_CHANGES = _object(
    {name: {**_row({"old": shape, "new": shape}), "optional": True} for name, shape in _KNOBS.items()},
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
_ENTRY = _row(dict.fromkeys(EntryRow._fields, _whole()))
_STEP = _row(
    {
        **dict.fromkeys(StepRow._fields, _whole()),
        **dict.fromkeys(("t0", "t1", "device_ms", "host_ms"), _number()),
        "entries": _list(_ENTRY),
        **dict.fromkeys(("preempted", "copied"), _list(_REQUEST_ID)),
        "graph": {**_FLAG, "null": True},
    },
    missing=len(StepRow._field_defaults),
)
_TOKEN = _row({**dict.fromkeys(TokenRow._fields, _whole()), "t": _number(), "itl_ms": _MS})
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
        "knobs": _object(_KNOBS, rest=_SCALAR),
        "snapshot": _SNAPSHOT,
        **_optional(_object({}, rest=_SCALAR, null=True), "environment"),
        **_optional(_text(), "version", "created", "words"),
    }
)
FRAME = _object(
    {
        "t": _number(),
        "steps": _list(_STEP),
        "tokens": _list(_TOKEN),
        "requests": _list(_EVENT),
        "knobs": _list(_row({"t": _number(), "step": _whole(-1), "changes": _CHANGES})),
        "blocks": _BLOCKS,
        **_optional(_list(_row({"request": _REQUEST_ID, "title": _text(_LONG_TEXT)})), "titles"),
        **_optional(_list(_row({"request": _REQUEST_ID, "index": _whole(), "text": _text(_LONG_TEXT)})), "texts"),
        **_optional(_STATS, "stats"),
        **_optional(_BURST, "burst"),
    }
)


def check(value: Any, shape: Shape) -> None:
    """Raises ``ValueError`` that says where ``value`` has another shape, as in ``steps, t0 should be a number``."""
    _check([value], shape, "")


def _check(values: Sequence[Any], shape: Shape, where: str) -> None:
    """Many values of one shape at once: a recording has millions, and most are in columns of one type."""
    if shape.get("null"):
        values = [value for value in values if value is not None]
    if not values:
        return
    types = set(map(type, values))
    if not types <= _TYPES[shape["type"]]:
        raise ValueError(f"{where or 'it'} should be {_words(shape)}")
    within = _WITHIN.get(shape["type"])
    if within:
        within(values, shape, where)


def _in_range(values: Sequence[Any], shape: Shape, where: str) -> None:
    within = shape["least"] <= min(values) and max(values) <= shape["most"]
    if not within or not all(map(math.isfinite, values)):
        raise ValueError(f"{where} should be {_words(shape)}")


def _short(values: Sequence[Any], shape: Shape, where: str) -> None:
    if any(len(value) > shape["most"] for value in values if isinstance(value, str)):
        raise ValueError(f"{where} is longer than {shape['most']:,} characters")
    if any(isinstance(value, int | float) and not abs(value) <= _FAR_SCALAR for value in values):
        raise ValueError(f"{where} should be {_words(shape)}")


def _chosen(values: Sequence[Any], shape: Shape, where: str) -> None:
    if not set(values) <= set(shape["values"]):
        raise ValueError(f"{where} should be {_words(shape)}")


def _listed(values: Sequence[Any], shape: Shape, where: str) -> None:
    _check(list(chain.from_iterable(values)), shape["of"], where)


def _columns(rows: Sequence[Any], shape: Shape, where: str) -> None:
    columns = shape["columns"]
    least, most = len(columns) - shape["missing"], len(columns)
    if not all(least <= len(row) <= most for row in rows):
        raise ValueError(f"{where} should have rows of {most} columns")
    for i, (name, column) in enumerate(columns.items()):
        _check([row[i] for row in rows if len(row) > i], column, f"{where}, {name}")


def _fields(objects: Sequence[Any], shape: Shape, where: str) -> None:
    for name, field in shape["fields"].items():
        path = f"{where}, {name}" if where else name
        found = [one[name] for one in objects if name in one]
        if len(found) < len(objects) and not field.get("optional"):
            raise ValueError(f"{path} is missing")
        _check(found, field, path)
    rest = shape.get("rest")
    if rest:
        others = [(name, value) for one in objects for name, value in one.items() if name not in shape["fields"]]
        if any(len(name) > 200 for name, _ in others):
            raise ValueError(f"{where} has a name longer than 200 characters")
        _check([value for _, value in others], rest, where)


def _words(shape: Shape) -> str:
    """What a value of this shape is, in words."""
    kind = shape["type"]
    if kind in ("number", "whole"):
        noun = "a whole number" if kind == "whole" else "a number"
        return f"{noun} from {shape['least']:,} to {shape['most']:,}"
    if kind == "choice":
        return f"one of {', '.join(shape['values'])}"
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
