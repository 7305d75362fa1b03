"""Types of the fields in servers' answers: a value of another kind than expected counts as missing."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from roseplay.formats.json_schema import FAR
from roseplay.formats.text import is_name

_MOST = 2**31 - 1  # tokens: the most that columns of the page and of recordings can hold
T = TypeVar("T")


def _or_none(value: Any, checked: ValidatorFunctionWrapHandler) -> Any:
    try:
        return checked(value)
    except ValidationError:
        return None


def _shown(name: str) -> str:
    if not is_name(name):
        raise ValueError("it cannot be displayed as it is")
    return name


Maybe = Annotated[T | None, WrapValidator(_or_none)]
Text = Maybe[Annotated[str, Field(strict=True)]]
Name = Annotated[str, Field(strict=True), AfterValidator(_shown)]
Count = Maybe[Annotated[int, Field(strict=True, ge=0, le=_MOST)]]
Milliseconds = Maybe[Annotated[float, Field(strict=True, ge=0, le=FAR)]]
