"""Shapes of well-known models for measurements: configs without weights, to be run with random ones."""

from __future__ import annotations

from pathlib import Path

_DIRECTORY = Path(__file__).resolve().parent


def names() -> list[str]:
    """Returns the names of the bundled shapes, such as ``gpt2-124m``."""
    return sorted(config.parent.name for config in _DIRECTORY.glob("*/config.json"))


def resolve(model: str) -> str:
    """Returns the directory of the shape with this name; returns any other name unchanged."""
    return str(_DIRECTORY / model) if model in names() else model
