"""Values and errors as one short line, for whoever sent what is refused."""

from __future__ import annotations

from typing import Any

_VALUE = 80  # characters of a value
_LINE = 400


def shown(value: Any) -> str:
    """A value as Python writes it, cut where it is long."""
    if isinstance(value, str | list | tuple) and len(value) > _VALUE:
        value = value[:_VALUE]
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python converts; lists in lists
        return f"a {type(value).__name__}"
    return text if len(text) <= _VALUE else text[:_VALUE] + "…"


def one_line(error: object) -> str:
    """An error's message in one line, cut where it is long: it may repeat what was sent."""
    text = " ".join(str(error)[: 4 * _LINE].split())
    return text if len(text) <= _LINE else text[:_LINE] + "…"
