"""Shapes of well-known models to measure: a config and no weights, to be run with random ones."""

from __future__ import annotations

from pathlib import Path

_DIRECTORY = Path(__file__).resolve().parent


def names() -> list[str]:
    """The shapes at hand, such as ``gpt2-124m``."""
    return sorted(config.parent.name for config in _DIRECTORY.glob("*/config.json"))


def resolve(model: str) -> str:
    """The directory of the shape of that name; any other name comes back as it is."""
    return str(_DIRECTORY / model) if model in names() else model
