"""Generates the page's columns and types of records from ``engine/records.py``: ``python docs/records.py``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from roseplay.core.info import Choice, EngineInfo
from roseplay.engine.records import ROWS, Column, MissRecord, RequestRecord, columns_of
from roseplay.engine.telemetry import Load

SCRIPT = Path(__file__).parents[1] / "roseplay" / "play" / "static" / "shared" / "records.js"
_INTRODUCTION = """\
/* The columns of rows in frames and recordings, and the types of records in them: written by `python docs/records.py`
 * from roseplay/engine/records.py. */
const F64 = Float64Array, I32 = Int32Array;
"""
_TYPES = {MissRecord: "Miss", Load: "LoadFigures", EngineInfo: "Info", Choice: "Choice"}
_ELSEWHERE = {"miss": "Miss | null"}  # types that annotations do not give


def script() -> str:
    return "\n".join([_INTRODUCTION, *_columns(), *_new_request(), *_types()])


def _columns() -> Iterator[str]:
    """Yields the columns that the store keeps; lists are read by ``reduce.js``."""
    for rows, record in ROWS.items():
        yield f"/** {_summary(record)} */\nexport const {rows.upper()} = {{"
        for column, about in columns_of(record).items():
            if get_origin(about.kind) is not list:
                yield f"  {column}: {_array(about.kind)},{_comment(about)}"
        yield "};\n"


def _array(kind: Any) -> str:
    return {int: "I32", float: "F64", float | None: "F64"}.get(kind, "Array")


def _types() -> Iterator[str]:
    for record, name in _TYPES.items():
        yield f"/**\n * {_summary(record)}\n * @typedef {{object}} {name}"
        for field, about in columns_of(record).items():
            shown = field if about.default is MISSING or record not in (EngineInfo, Choice) else f"[{field}]"
            yield f" * @property {{{_type(about.kind)}}} {shown} {_words(about)}".rstrip()
        yield " */\n"


def _new_request() -> Iterator[str]:
    """Yields the fields of a request, each with its default, from which its type follows."""
    yield f"/** {_summary(RequestRecord)} */\nexport const newRequest = () => ({{"
    for field, about in columns_of(RequestRecord).items():
        kind, value = _ELSEWHERE.get(field) or _type(about.kind), json.dumps(about.default)
        cast = value if kind in ("number", "boolean") else f"/** @type {{{kind}}} */ ({value})"
        line, comment = f"  {field}: {cast},", _comment(about)
        yield line + comment if len(line + comment) <= 120 else f" {comment}\n{line}"
    yield "});\n\n/** @typedef {ReturnType<typeof newRequest>} RequestRecord */\n"


def _type(kind: Any) -> str:
    """Returns a type in the words of TypeScript."""
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return " | ".join(json.dumps(value) for value in arguments)
    if NoneType in arguments:
        return f"{_type(arguments[0])} | null"
    if get_origin(kind) in (list, tuple):
        return f"{_type(arguments[0])}[]"
    plain = {int: "number", float: "number", str: "string", bool: "boolean", Choice: "Choice"}
    return plain.get(kind, "Record<string, any>")


def _words(column: Column) -> str:
    return column.meaning + (f" ({column.unit})" if column.unit else "")


def _comment(column: Column) -> str:
    return f" // {_words(column)}" if _words(column) else ""


def _summary(record: Any) -> str:
    return str(record.__doc__).partition("\n")[0]


if __name__ == "__main__":
    SCRIPT.write_text(script(), encoding="utf-8")
