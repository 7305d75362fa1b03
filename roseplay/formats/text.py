"""Formats values, numbers and errors as short text for display."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

_VALUE = 80  # characters of a value
_LINE = 400
_NAME = 200
_EXACT = Context(prec=400)  # a float has at most 309 digits before its point


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
    text = " ".join(str(error)[: 4 * _LINE].split())
    text = "".join(char if char.isprintable() else "\ufffd" for char in text)
    return text if len(text) <= _LINE else text[:_LINE] + "…"


def is_name(value: object) -> bool:
    """Returns whether a name from another program is text that can be displayed as it is, even on a terminal."""
    return isinstance(value, str) and 0 < len(value) <= _NAME and value.isprintable()


def number_text(value: float | None) -> str:
    """Returns a number with about three significant digits and narrow spaces between thousands; a dash for ``None``."""
    if value is None:
        return "–"
    digits = 0 if value == int(value) or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{_rounded(value, digits):,}".replace(",", "\u202f")


def ratio_text(ratio: float | None) -> str:
    """Returns a ratio such as ``0.15×``; a dash for ``None``."""
    if ratio is None:
        return "–"
    return f"{_rounded(ratio, 3 if ratio < 0.1 else 2 if ratio < 10 else 1) if ratio else 0}×"


def range_text(low: float | None, high: float | None) -> str:
    """Returns a range such as ``13.6–14.3``, or "" if its ends look the same."""
    ends = [number_text(low), number_text(high)]
    return "" if ends[0] == ends[1] else "–".join(ends)


def _rounded(value: float, digits: int) -> Decimal:
    """Returns a value with ``digits`` decimal places, halves rounded up as in the page's scripts."""
    return Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, _EXACT)


def setting_text(value: Any, none: str = "∞") -> str:
    """Returns a setting's value as text; ``none`` stands for ``None``, which for a knob means no limit."""
    if value is None:
        return none
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
