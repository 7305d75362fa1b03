"""Words what is wrong with a document that does not fit its declared types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from roseplay.formats.text import one_line, shown


def first_fault(error: ValidationError, document: str = "", skip: int = 0) -> str:
    """Returns the first fault in one line, as in ``the result, runs 2, itl_ms 31 should be a valid number, not 'x'``.

    Args:
        document: its name.
        skip: how many names lead to what is called the document.
    """
    return fault_text(error.errors(include_url=False)[0], document, skip)


def fault_text(fault: Mapping[str, Any], document: str = "", skip: int = 0) -> str:
    """Returns a fault of pydantic's, or of FastAPI's, in one line, see ``first_fault``."""
    where = document
    for part in fault["loc"][skip:]:
        where += f" {part + 1}" if isinstance(part, int) else f"{', ' if where else ''}{part}"
    match fault["type"]:
        case "missing":
            return one_line(f"{where} is missing")
        case "value_error":
            return one_line(f"{where}: {fault['ctx']['error']}" if where else fault["ctx"]["error"])
    message = fault["msg"]  # of pydantic and of our own types, mostly "Input should be ..."
    message = message.removeprefix("Input") if message.startswith("Input ") else f": {message}"
    return one_line(f"{where}{message}, not {shown(fault['input'])}")
