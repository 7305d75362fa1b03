"""Reads the findings of a summary, and makes up the values from which they are derived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from roseplay.extras.lab.types import FigureName


def finding(summary: Mapping[str, Any], kind: str, arm: str = "") -> dict[str, Any] | None:
    """The finding of this kind, without its words; ``None`` if there is none."""
    found = [one for one in summary["findings"] if (one["kind"], one["arm"]) == (kind, arm)]
    assert len(found) <= 1
    return {name: value for one in found for name, value in one.items() if name not in ("kind", "arm", "words")} or None


def has(summary: Mapping[str, Any], kind: str, **fields: Any) -> bool:
    return any(one["kind"] == kind and fields.items() <= one.items() for one in summary["findings"])


def point(value: float | None, **figures: Sequence[float | None]) -> dict[str, Any]:
    """A measured value whose runs have these figures, each a list with one for each run; 5 for all others."""
    runs = [dict(zip(figures, run, strict=True)) for run in zip(*figures.values(), strict=True)]
    usual = dict.fromkeys(get_args(FigureName), 5.0)
    return {"value": value, "requests": 8, "runs": [usual | run for run in runs]}
