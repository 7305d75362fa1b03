"""Schemas of JSON values, and a check of values against them, for recordings and results of experiments.

The page's reader of recordings (``static/replay/recording.js``) gets the same schema and makes the same checks, so that
both accept the same files. A schema is itself JSON, one of:

- ``number``, ``whole``, ``text``, ``flag``: a finite number, an integer, a string (of at most ``most`` characters), a
  boolean
- ``choice``: one of ``values``
- ``scalar``: a number, text, a boolean or null; ``any``: anything
- ``list``: items of the schema ``of``
- ``row``: a list with a schema for each of its ``columns``, the last ``missing`` of which may be absent
- ``object``: ``fields`` with their schemas; other fields have the schema ``rest``, or any value if there is none

``null``: null is allowed as well. ``optional``: the field may be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

from pydantic_core import CoreSchema, SchemaValidator, ValidationError
from pydantic_core import core_schema as core
from typing_extensions import is_typeddict

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
    """Returns the schema of values of a type: a number (whole ones from 0), text, a flag, a ``Literal`` of texts, a
    list, a row (``NamedTuple``), an object (``TypedDict``, or a dict by names), or one of these or ``None``. It is what
    an ``Annotated`` type says."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return dict(arguments[1])
    if origin is NotRequired:
        return {**of_type(arguments[0]), "optional": True}
    if origin is Literal:
        return choice(*arguments)
    if origin in (Union, UnionType):
        (other,) = (argument for argument in arguments if argument is not type(None))
        return {**of_type(other), "null": True}
    if origin is list:
        return list_of(of_type(arguments[0]))
    if origin is dict:
        return object_of({}, rest=of_type(arguments[1]))
    if is_typeddict(kind) or hasattr(kind, "_fields"):
        fields = {name: of_type(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
        if not is_typeddict(kind):
            return row(fields)
        return object_of(fields if kind.__total__ else {name: {**it, "optional": True} for name, it in fields.items()})
    return {int: whole(), float: number(), str: text(), bool: FLAG}[kind]


def check(value: Any, schema: Schema) -> None:
    """Raises ``ValueError`` if ``value`` does not match, with the place, as in ``steps, t0 should be a number``."""
    checker(schema)(value)


def checker(schema: Schema) -> Callable[[Any], None]:
    """Returns ``check`` for many values of one schema."""
    validator = SchemaValidator(_core_schema(schema))

    def check(value: Any) -> None:
        try:
            validator.validate_python(value)
        except ValidationError as error:
            raise ValueError(_fault(error.errors(include_url=False, include_input=False)[0], schema)) from None

    return check


def _core_schema(schema: Schema) -> CoreSchema:
    core_schema = _CORE_SCHEMAS[schema["type"]](schema)
    return core.nullable_schema(core_schema) if schema.get("null") else core_schema


def _row(schema: Schema) -> CoreSchema:
    columns = [_core_schema(column) for column in schema["columns"].values()]
    required = len(columns) - schema["missing"]
    columns[required:] = [core.with_default_schema(column, default=None) for column in columns[required:]]
    return core.tuple_schema(columns)


def _object(schema: Schema) -> CoreSchema:
    fields = {
        name: core.typed_dict_field(_core_schema(field), required=not field.get("optional"))
        for name, field in schema["fields"].items()
    }
    rest = schema.get("rest")
    core_schema = core.typed_dict_schema(fields, extra_behavior="allow", extras_schema=_core_schema(rest or ANY))
    return core.chain_schema([core_schema, core.dict_schema(_text({"most": 200}))]) if rest else core_schema


def _scalar(schema: Schema) -> CoreSchema:
    number = core.float_schema(ge=-_FAR_SCALAR, le=_FAR_SCALAR, allow_inf_nan=False, strict=True)
    return core.nullable_schema(core.union_schema([core.bool_schema(strict=True), number, _text(schema)]))


def _text(schema: Schema) -> CoreSchema:
    """Accepts lone surrogates, which an answer of a model can have, and ``str_schema`` refuses."""
    length = core.no_info_after_validator_function(len, core.is_instance_schema(str))
    return core.chain_schema([length, core.int_schema(le=schema["most"])])


_CORE_SCHEMAS: dict[str, Callable[[Schema], CoreSchema]] = {
    "number": lambda of: core.float_schema(ge=of["least"], le=of["most"], allow_inf_nan=False, strict=True),
    "whole": lambda of: core.int_schema(ge=of["least"], le=of["most"], strict=True),
    "text": _text,
    "flag": lambda of: core.bool_schema(strict=True),
    "choice": lambda of: core.literal_schema(of["values"]),
    "scalar": _scalar,
    "any": lambda of: core.any_schema(),
    "list": lambda of: core.list_schema(_core_schema(of["of"]), strict=True, fail_fast=True),
    "row": _row,
    "object": _object,
}


def _fault(error: Any, schema: Schema) -> str:
    """Returns what is wrong in one line."""
    kind, place = error["type"], error["loc"]
    names: list[str] = []
    for i, part in enumerate(place):
        if schema["type"] == "list":
            schema = schema["of"]
        elif schema["type"] == "object":
            names.append(part)
            schema = schema["fields"].get(part) or schema["rest"]
        elif schema["type"] == "row" and (kind != "missing" or i < len(place) - 1):
            names.append([*schema["columns"]][part])
            schema = schema["columns"][names[-1]]
    where = ", ".join(names) or "it"
    if schema["type"] == "row" and kind in ("missing", "too_long"):
        return f"{where} should have rows of {len(schema['columns'])} columns"
    if kind == "missing":
        return f"{where} is missing"
    if kind == "less_than_equal" and place[-1:] == ("[key]",):
        return f"{', '.join(names[:-1])} has a name longer than 200 characters"
    if kind == "less_than_equal" and schema["type"] == "text":
        return f"{where} is longer than {schema['most']:,} characters"
    return f"{where} should be {_words(schema)}"


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
