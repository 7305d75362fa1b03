"""Tracks by hash which blocks an engine's prefix cache holds, for the router."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable

from roseplay.core.cache_events import Cleared, Removed, Stored
from roseplay.engine.telemetry import StepEvent, TelemetryEvent


class ResidentBlocks:
    """The hashes of an engine's full blocks, most recently used last. Needs ``EngineConfig.kv_events``."""

    def __init__(self) -> None:
        self._hashes: OrderedDict[int, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._hashes)

    def take(self, event: TelemetryEvent) -> None:
        """Follow one event of the engine's telemetry."""
        if not isinstance(event, StepEvent):
            return
        with self._lock:
            for change in event.record.cache_events:
                match change:
                    case Stored():
                        self._hashes[change.block_hash] = None
                    case Removed():
                        self._hashes.pop(change.block_hash, None)
                    case Cleared():
                        self._hashes.clear()

    def use(self, hashes: Iterable[int]) -> None:
        """Mark a prompt's blocks as just used, up to the first that is not resident."""
        with self._lock:
            for block_hash in hashes:
                if block_hash not in self._hashes:
                    return
                self._hashes.move_to_end(block_hash)

    def newest(self, most: int) -> bytes:
        """Returns the hashes of the most recently used blocks, newest first, 8 bytes each (see ``unpack``)."""
        with self._lock:
            hashes = reversed(self._hashes)
            return array("q", [block_hash for block_hash, _ in zip(hashes, range(most), strict=False)]).tobytes()


def unpack(packed: bytes) -> frozenset[int]:
    """Returns the hashes that ``ResidentBlocks.newest`` packed."""
    return frozenset(array("q", packed))
