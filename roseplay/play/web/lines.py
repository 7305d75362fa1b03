"""Values and errors as one short line, for the sender of what is refused."""

from __future__ import annotations

from typing import Any

_VALUE = 80  # characters of a value
_LINE = 400


def shown(value: Any) -> str:
    """Returns a value as Python writes it, truncated."""
    if isinstance(value, str | list | tuple) and len(value) > _VALUE:
        value = value[:_VALUE]
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with more digits than Python converts; deeply nested lists
        return f"a {type(value).__name__}"
    return text if len(text) <= _VALUE else text[:_VALUE] + "…"


def one_line(error: object) -> str:
    """Returns an error's message as one line, truncated: it may repeat what was sent."""
    text = " ".join(str(error)[: 4 * _LINE].split())
    return text if len(text) <= _LINE else text[:_LINE] + "…"
