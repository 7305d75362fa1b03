"""Reads the findings of a summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def finding(summary: Mapping[str, Any], kind: str, arm: str = "") -> dict[str, Any] | None:
    """The finding of this kind, without its words; ``None`` if there is none."""
    found = [one for one in summary["findings"] if (one["kind"], one["arm"]) == (kind, arm)]
    assert len(found) <= 1
    return {name: value for one in found for name, value in one.items() if name not in ("kind", "arm", "words")} or None


def has(summary: Mapping[str, Any], kind: str, **fields: Any) -> bool:
    return any(one["kind"] == kind and fields.items() <= one.items() for one in summary["findings"])
