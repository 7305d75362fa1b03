"""Counts, by reason, of other engines' messages that could not be used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MOST_REASONS = 50  # arbitrary data can be wrong in any number of ways
_FURTHER = "something else"


@dataclass
class Problems:
    """Counts of what is missing from a run.

    Attributes:
        skipped: by reason, data that arrived and was not used.
        lost: by stream, missed messages that could not be fetched from a replay either.
        fetched: by stream, missed messages fetched from a replay.
    """

    skipped: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    fetched: Counter[str] = field(default_factory=Counter)

    def skip(self, reason: str, count: int = 1) -> None:
        """Count data that was not used."""
        known = reason in self.skipped or len(self.skipped) < MOST_REASONS
        self.skipped[reason if known else _FURTHER] += count

    def lines(self) -> list[str]:
        """Returns a line for each problem: lost messages, then fetched and skipped ones, the most frequent first."""
        found = [f"{count:,} messages of {stream} were lost" for stream, count in self.lost.most_common()]
        found += [f"{count:,} missed messages of {name} were sent again" for name, count in self.fetched.most_common()]
        return found + [f"skipped {count:,} × {reason}" for reason, count in self.skipped.most_common()]
