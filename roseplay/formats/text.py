"""Formats values and errors as short text for display."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_VALUE = 80  # characters of a value
_LINE = 400
_NAME = 200


def shown(value: Any) -> str:
    """Returns a value's truncated ``repr``, for messages that refuse it."""
    if isinstance(value, str | list | tuple) and len(value) > _VALUE:
        value = value[:_VALUE]
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with more digits than Python converts, or deeply nested lists
        return f"a {type(value).__name__}"
    return text if len(text) <= _VALUE else text[:_VALUE] + "…"


def one_line(error: object) -> str:
    """Returns an error's message as one line, truncated and without control characters: it may contain user input."""
    text = re.sub(r"[^\S\u202f]+", " ", str(error)[: 4 * _LINE]).strip()  # not the space within a number
    text = "".join(char if char.isprintable() or char == "\u202f" else "\ufffd" for char in text)
    return text if len(text) <= _LINE else text[:_LINE] + "…"


def error_line(error: BaseException) -> str:
    """Returns an error's type and the first line of its message."""
    return f"{type(error).__name__}: {error}".split("\n", 1)[0]


def is_name(value: object) -> bool:
    """Returns whether a name from another program is text that can be displayed as it is, even on a terminal."""
    return isinstance(value, str) and 0 < len(value) <= _NAME and value.isprintable()


def listed(names: Iterable[str]) -> str:
    """Returns names as a list in a sentence, such as ``57.1, 72.9 and 88.6``."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
