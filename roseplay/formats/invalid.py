"""Words what is wrong with a document that does not fit its declared types."""

from __future__ import annotations

from pydantic import ValidationError

from roseplay.formats.text import one_line, shown


def first_fault(error: ValidationError, document: str = "", skip: int = 0) -> str:
    """Returns the first fault in one line, as in ``the result, runs 2, itl_ms 31 should be a valid number, not 'x'``.

    Args:
        document: its name.
        skip: how many names lead to what is called the document.
    """
    fault = error.errors(include_url=False)[0]
    where = document
    for part in fault["loc"][skip:]:
        where += f" {part + 1}" if isinstance(part, int) else f"{', ' if where else ''}{part}"
    match fault["type"]:
        case "missing":
            return one_line(f"{where} is missing")
        case "value_error":
            return one_line(f"{where}: {fault['ctx']['error']}" if where else fault["ctx"]["error"])
    # Pydantic and our own types word a wrong value alike: "Input should be ...".
    return one_line(f"{where}{fault['msg'].removeprefix('Input')}, not {shown(fault['input'])}")
