"""Schemas of JSON values, and a check of values against them, for recordings and for results of the lab.

The page's reader of recordings (``static/replay/recording.js``) gets the same schema and makes the same checks, so that
both accept the same files. A schema is itself JSON, one of:

- ``number``, ``whole``, ``text``, ``flag``: a finite number, an integer, a string (of at most ``most`` characters), a
  boolean
- ``choice``: one of ``values``
- ``scalar``: a number, text, a boolean or null; ``any``: anything
- ``list``: items of the schema ``of``; if ``numbered``, errors give an item's number, from 1
- ``row``: a list with a schema for each of its ``columns``, the last ``missing`` of which may be absent
- ``object``: ``fields`` with their schemas; other fields have the schema ``rest``, or any value if there is none

``null``: null is allowed as well. ``optional``: the field may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from types import UnionType
from typing import Any, Literal, get_args, get_origin

Schema = dict[str, Any]

FAR = 1e12  # for times in milliseconds: about thirty years
_MOST = 2**31 - 1  # the page's integer columns are 32 bits wide
_FAR_SCALAR = 1e15
FLAG: Schema = {"type": "flag"}
ANY: Schema = {"type": "any"}


def number(least: float = -FAR, most: float = FAR, **more: Any) -> Schema:
    return {"type": "number", "least": least, "most": most, **more}


def whole(least: int = 0, most: int = _MOST, **more: Any) -> Schema:
    return {"type": "whole", "least": least, "most": most, **more}


def text(most: int = 1000, **more: Any) -> Schema:
    return {"type": "text", "most": most, **more}


def list_of(of: Schema, **more: Any) -> Schema:
    return {"type": "list", "of": of, **more}


def row(columns: dict[str, Schema], missing: int = 0) -> Schema:
    """Returns the schema of a row that may lack up to ``missing`` of its last columns."""
    return {"type": "row", "columns": columns, "missing": missing}


def object_of(fields: dict[str, Schema], **more: Any) -> Schema:
    return {"type": "object", "fields": fields, **more}


def choice(*values: str) -> Schema:
    return {"type": "choice", "values": list(values)}


def scalar() -> Schema:
    return {"type": "scalar", "most": 10_000}


def optional(schema: Schema, *names: str) -> dict[str, Schema]:
    return {name: {**schema, "optional": True} for name in names}


def of_type(kind: Any) -> Schema:
    """Returns the schema of values of a type: a number (whole ones from 0), text, a flag, a ``Literal`` of texts, a list,
    or one of these or ``None``."""
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return choice(*arguments)
    if get_origin(kind) is UnionType:
        (other,) = (argument for argument in arguments if argument is not type(None))
        return {**of_type(other), "null": True}
    if get_origin(kind) is list:
        return list_of(of_type(arguments[0]))
    return {int: whole(), float: number(), str: text(), bool: FLAG}[kind]


def check(value: Any, schema: Schema, where: str = "") -> None:
    """Raises ``ValueError`` if ``value`` does not match, with the place, as in ``steps, t0 should be a number``."""
    _check([value], schema, where)


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
    if not schema.get("numbered"):
        _check(list(chain.from_iterable(values)), schema["of"], where)
        return
    for items in values:
        for number, item in enumerate(items, 1):
            _check([item], schema["of"], f"{where} {number}")


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
    """Returns a description of this schema's values."""
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
