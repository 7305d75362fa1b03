"""How many inputs the tests have tried that should be refused or do no harm; the summary of a run says it."""

from __future__ import annotations

count = 0  # since `take`


def tried(number: int = 1) -> None:
    """Count some."""
    global count
    count += number


def take() -> int:
    """Returns how many were tried since this was last asked."""
    global count
    taken, count = count, 0
    return taken
