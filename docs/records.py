"""Generates the page's columns and types of records: ``python docs/records.py``.

Columns and records are declared in ``engine/records.py``, and what frames and snapshots have in ``recording/schema.py``.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from roseplay.core.info import Choice, EngineInfo
from roseplay.engine.records import ROWS, Column, MissRecord, RequestRecord, columns_of
from roseplay.engine.telemetry import Load
from roseplay.formats.json_schema import Schema, of_type
from roseplay.play.chats import AnswerFigures
from roseplay.recording.schema import FRAME, HEADER

SCRIPT = Path(__file__).parents[1] / "roseplay" / "play" / "static" / "shared" / "records.js"
_INTRODUCTION = """\
/* The columns of rows in frames and recordings, and the types of records in them: written by `python docs/records.py`
 * from roseplay/engine/records.py and roseplay/recording/schema.py, which say what each is. */
/** @import { Load } from "./types.js" */
const F64 = Float64Array, I32 = Int32Array;
"""
_TYPES = {MissRecord: "Miss", Load: "LoadFigures", EngineInfo: "Info", Choice: "Choice"}
_ELSEWHERE = {"miss": "Miss | null"}  # types that annotations do not give
_FRAME, _SNAPSHOT = FRAME["fields"], HEADER["fields"]["snapshot"]
_SHAPES = {
    "Columns": HEADER["fields"]["columns"],
    "BlockRow": _FRAME["blocks"]["of"],
    "StateRow": _FRAME["states"]["of"],
    "Sentence": _FRAME["story"]["fields"]["lines"]["of"],
    "Said": _FRAME["story"],
    "PairFigure": _FRAME["pair"]["fields"]["figures"]["of"],
    "Side": _FRAME["pair"]["fields"]["sides"]["columns"]["before"],
    "Pair": _FRAME["pair"],
    "Ring": _FRAME["demo"]["fields"]["rings"]["of"],
    "DemoCaption": _FRAME["demo"],
    "Stats": _FRAME["stats"],
    "BurstFigures": _FRAME["burst"],
    "AnswerFigures": of_type(AnswerFigures),
    "RecordedSnapshot": _SNAPSHOT,
    "Frame": FRAME,
}
# Schemas that have a type already, or whose values scripts read by name.
_KNOWN = [
    (_FRAME["requests"]["of"]["columns"]["about"], "Partial<RequestRecord>"),
    (_FRAME["knobs"]["of"]["columns"]["changes"], "Record<string, [old: any, new: any]>"),
    (_FRAME["loads"]["of"], "Load"),
]


_TIED = "\N{NO-BREAK SPACE}"  # within a line


def script() -> str:
    return "\n".join([_INTRODUCTION, *_columns(), *_new_request(), *_types(), *_shapes()])


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
    """Yields the types of records; what their fields mean is said where they are declared."""
    for record, name in _TYPES.items():
        optional = record in (EngineInfo, Choice)
        fields = (
            f"{field}{'?' * (optional and about.default is not MISSING)}:{_TIED}{_type(about.kind).replace(' ', _TIED)}"
            for field, about in columns_of(record).items()
        )
        yield _typedef(f"{{{', '.join(fields)}}}", name, _summary(record))


def _shapes() -> Iterator[str]:
    """Yields the types of frames, snapshots and what they have."""
    for name, schema in _SHAPES.items():
        yield _typedef(_shape(schema, name), name)


def _typedef(shape: str, name: str, *words: str) -> str:
    first, *more = textwrap.wrap(f"@typedef {{{shape}}} {name}", 113, subsequent_indent="  ")
    return ("/** " + "\n * ".join([*words, first, *more]) + " */\n").replace(_TIED, " ")


def _shape(schema: Schema, name: str = "") -> str:
    """Returns the type of a schema's values; ``name``: that of the schema, if it is being declared."""
    if schema.get("null"):
        return _shape(_plain(schema), name) + ("" if name else " | null")
    named = [(_plain(shape), other) for other, shape in _SHAPES.items() if other != name]
    known = [(_plain(shape), other) for shape, other in _KNOWN]
    for shape, other in [*known, *named]:
        if _plain(schema) == shape:
            return other
    match schema.get("type"):  # rows with columns of a recording have no type yet
        case "list":
            inner = _shape(schema["of"])
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        case "row":
            optional = len(schema["columns"]) - schema["missing"]
            columns = enumerate(schema["columns"].items())
            return "[" + ", ".join(f"{n}{'?' * (i >= optional)}:{_TIED}{_shape(it)}" for i, (n, it) in columns) + "]"
        case "object" if schema["fields"]:
            fields = schema["fields"].items()
            return (
                "{" + ", ".join(f"{n}{'?' * it.get('optional', False)}:{_TIED}{_shape(it)}" for n, it in fields) + "}"
            )
        case "object":
            return f"Record<string, {_shape(schema['rest'])}>" if "rest" in schema else "Record<string, any>"
        case "choice":
            return " | ".join(json.dumps(value) for value in schema["values"])
    return {"number": "number", "whole": "number", "text": "string", "flag": "boolean"}.get(
        schema.get("type", ""), "any"
    )


def _plain(schema: Schema) -> Schema:
    return {name: value for name, value in schema.items() if name not in ("optional", "null")}


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
