"""How many inputs the tests have tried that should be refused or do no harm; the summary of a run says it."""

from __future__ import annotations

count = 0


def tried(number: int = 1) -> None:
    """Count some."""
    global count
    count += number
