"""The slots of recurrent states that are not free, as in frames and snapshots: rows ``[slot, request, tokens]``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_FREE = [-1, 0]


class StateSlots:
    """The newest content of each slot; see ``engine.records.StateChange``."""

    def __init__(self, rows: Iterable[Sequence[int]] = ()) -> None:
        self._slots: dict[int, list[int]] = {}
        self.take(rows)

    def take(self, rows: Iterable[Sequence[int]]) -> list[list[int]]:
        """Apply new contents; returns the rows of slots that have changed."""
        newest = {slot: content for slot, *content in rows}
        changed = {slot: content for slot, content in newest.items() if content != self._slots.get(slot, _FREE)}
        self._slots = {slot: content for slot, content in (self._slots | changed).items() if content != _FREE}
        return [[slot, *content] for slot, content in changed.items()]

    def rows(self) -> list[list[int]]:
        return [[slot, *content] for slot, content in sorted(self._slots.items())]
