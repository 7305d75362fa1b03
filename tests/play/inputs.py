"""Counts the inputs that should be refused or do no harm; the summary of a test run reports the total."""

from __future__ import annotations

count = 0  # since `take`


def tried(number: int = 1) -> None:
    """Add to the count."""
    global count
    count += number


def take() -> int:
    """Returns the count since the last call, and resets it."""
    global count
    taken, count = count, 0
    return taken
