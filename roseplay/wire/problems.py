"""What a reader of other engines' messages could not use, counted by reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MOST_REASONS = 50  # garbage may be wrong in any number of ways
_FURTHER = "something else"


@dataclass
class Problems:
    """Counts of what is missing from a run.

    Attributes:
        skipped: by reason, what arrived and was not used.
        lost: by stream, messages that never arrived, not on a second request either.
        fetched: by stream, messages that arrived on a second request.
    """

    skipped: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    fetched: Counter[str] = field(default_factory=Counter)

    def skip(self, reason: str, count: int = 1) -> None:
        """Count something that was not used."""
        known = reason in self.skipped or len(self.skipped) < MOST_REASONS
        self.skipped[reason if known else _FURTHER] += count

    def lines(self) -> list[str]:
        """Returns what there is to report, a line each, the most frequent first."""
        found = [f"{count:,} messages of {stream} were lost" for stream, count in self.lost.most_common()]
        found += [f"{count:,} missed messages of {name} were sent again" for name, count in self.fetched.most_common()]
        return found + [f"skipped {count:,} × {reason}" for reason, count in self.skipped.most_common()]
