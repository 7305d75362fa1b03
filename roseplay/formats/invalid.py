"""Checks input from outside against its declared types, and words what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from roseplay.formats.text import one_line, shown

Declared = TypeVar("Declared", bound=BaseModel)

# What input should be or have, by the type of pydantic's fault and in terms of its context.
_SHOULD = {
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "be a valid integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "be a valid number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "be a valid boolean"),
    "finite_number": "be a finite number",
    "string_type": "be a valid string",
    "list_type": "be a valid list",
    "tuple_type": "be a valid list",
    "literal_error": "be {expected}",
    "greater_than": "be greater than {gt}",
    "greater_than_equal": "be greater than or equal to {ge}",
    "less_than": "be less than {lt}",
    "less_than_equal": "be less than or equal to {le}",
    "string_too_short": "have {min_length} or more characters",
    "string_too_long": "have at most {max_length} characters",
    "too_short": "have {min_length} or more items",
    "too_long": "have at most {max_length} items",
    "unfit": "be {kind}",
}


def unfit(kind: str) -> PydanticCustomError:
    """Returns the error to raise in a validator for input that is not of this ``kind``, such as ``a number``."""
    return PydanticCustomError("unfit", "Input should be {kind}", {"kind": kind})


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_whole), Field(strict=True)]  # 8.0 is one too


class Object(BaseModel):
    """A JSON object from outside, without other fields than those declared."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        names = [field.alias or name for name, field in cls.model_fields.items()]
        unknown = [name for name in given if name not in names] if isinstance(given, dict) else []
        if unknown:
            raise ValueError(f"{unknown[0]} is not known: use {', '.join(names)}")
        return given


class Input(Object):
    """An object in which null stands for a field's default."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


def between(low: float, high: float) -> Any:
    """Returns the limits of a number's field."""
    return Field(ge=low, le=high)


def validated(kind: type[Declared], given: Any, document: str = "") -> Declared:
    """Returns input as its declared model.

    Args:
        document: its name, which the error begins with.

    Raises:
        ValueError: one line with the first fault.
    """
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise ValueError(first_fault(error, document)) from None


def first_fault(error: ValidationError, document: str = "", skip: int = 0) -> str:
    """Returns the first fault in one line, as in ``the result, runs 2, itl_ms 31 should be a valid number, not 'x'``.

    Args:
        document: its name.
        skip: how many names lead to what is called the document.
    """
    return fault_text(error.errors(include_url=False)[0], document, skip=skip)


def fault_text(fault: Mapping[str, Any], document: str = "", *, skip: int) -> str:
    """Returns a fault of pydantic's, or of FastAPI's, in one line, see ``first_fault``."""
    where = document
    for part in fault["loc"][skip:]:
        where += f" {part + 1}" if isinstance(part, int) else f"{', ' if where else ''}{part}"
    match fault["type"]:
        case "missing":
            return one_line(f"{where} is missing")
        case "model_type" | "dict_type":
            return one_line(f"{where} must be a JSON object, not {shown(fault['input'])}")
        case "value_error":
            return one_line(f"{where}: {fault['ctx']['error']}" if where else fault["ctx"]["error"])
    if (should := _SHOULD.get(fault["type"])) is None:
        return one_line(f"{where}: {fault['msg']}, not {shown(fault['input'])}")
    limits = {
        name: f"{value:.15g}" if isinstance(value, float) else value for name, value in fault.get("ctx", {}).items()
    }
    return one_line(f"{where} should {should.format_map(limits)}, not {shown(fault['input'])}")
