"""Formats numbers for display, with narrow spaces between thousands, as ``static/shared/format.js`` does."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

LEAST_IN_SECONDS = 999.5  # ms, which read as 1 000
_EXACT = Context(prec=400)  # a float has at most 309 digits before its point


def whole(value: float) -> str:
    """Returns a number without decimals."""
    return f"{round(value):,}".replace(",", "\u202f")


def many(count: int, word: str) -> str:
    """Returns a count with its noun: ``many(2, "answer")`` is ``2 answers``."""
    return f"{whole(count)} {word}{'' if count == 1 else 's'}"


def slowed_text(factors: Iterable[float]) -> str:
    """Returns what follows times that were measured under these factors of slow motion: `` at ×5`` if it was ×5
    throughout, `` partly at ×5`` if it was also off or changed, and "" if it was off."""
    distinct = sorted(set(factors))
    slow = " and ".join(f"×{factor:g}" for factor in distinct if factor > 1)
    return f"{' partly' if len(distinct) > 1 else ''} at {slow}" if slow else ""


def megabytes_text(size: float) -> str:
    """Returns bytes in MB, without the unit; without decimals from 10 MB on."""
    return whole(size / 1e6) if size >= 10e6 else f"{size / 1e6:.1f}"


def number_text(value: float | None) -> str:
    """Returns a number with about three significant digits; a dash for ``None``."""
    if value is None:
        return "–"
    size = abs(value)
    digits = 0 if value == int(value) or size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 3
    return f"{_rounded(value, digits):,}".replace(",", "\u202f")


def told_text(value: float) -> str:
    """Returns a number for a sentence: without decimals from 10 on, otherwise as ``number_text``."""
    return whole(value) if value >= 10 else number_text(value)


def percent_text(percent: float | None, digits: int | None = None) -> str:
    """Returns a percentage, with as many decimals as ``number_text`` gives unless ``digits`` says how many."""
    return f"{number_text(percent) if digits is None else f'{percent:.{digits}f}'}\u202f%"


def common_unit(unit: str, *values: float | None) -> tuple[str, list[float | None]]:
    """Returns values with the unit in which they are shown: milliseconds as seconds if one is a second or longer."""
    if unit == "ms" and any(value is not None and value >= LEAST_IN_SECONDS for value in values):
        return "s", [None if value is None else value / 1000 for value in values]
    return unit, list(values)


def amount_text(value: float | None, unit: str) -> str:
    """Returns a number with its unit, such as ``940 ms`` and ``1.75 s``."""
    unit, (value,) = common_unit(unit, value)
    return f"{number_text(value)} {unit}".strip()


def ratio_text(ratio: float | None) -> str:
    """Returns a ratio such as ``×0.15``; a dash for ``None``."""
    if ratio is None:
        return "–"
    return f"×{_rounded(ratio, 3 if ratio < 0.1 else 2 if ratio < 10 else 1) if ratio else 0}"


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
    if isinstance(value, int):
        return whole(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
