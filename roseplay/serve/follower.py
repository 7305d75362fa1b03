"""Reads an engine's telemetry as it arrives, for figures that must not miss an event."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from roseplay.engine.engine_like import EngineLike
from roseplay.engine.errors import EngineError
from roseplay.engine.telemetry import Telemetry, TelemetryEvent
from roseplay.engine.ticker import Ticker

FOLLOW_S = 0.25  # far less than the telemetry's log takes to overflow
_log = logging.getLogger(__name__)

Taker = Callable[[TelemetryEvent], None]


class Follower:
    """Calls functions with each event, once and in order, on a thread of its own.

    The first exception of each function is logged; the other functions and later events are not affected. When another
    engine takes the place of the first one, the rest of the first one's events come before those of the other.

    Args:
        engine: returns the engine; raises ``EngineError`` while it is starting.
        begin: called with each engine, before its first event.
        every_s: seconds between two readings.
    """

    def __init__(
        self,
        engine: Callable[[], EngineLike],
        *takers: Taker,
        begin: Callable[[EngineLike], object] = lambda engine: None,
        every_s: float = FOLLOW_S,
    ) -> None:
        self._engine, self._takers, self._begin = engine, takers, begin
        self._telemetry: Telemetry | None = None
        self._reader = Telemetry(1).reader()  # of that telemetry, once there is one
        self._failed: set[Taker] = set()
        self._lock = threading.Lock()
        failure = "the engine's telemetry could not be read"
        self._ticker = Ticker("roseplay-follower", self._look, every_s, failure, at_end=self._look)

    def start(self) -> None:
        self._ticker.start()

    def close(self) -> None:
        """Stop after the events so far."""
        self._ticker.close()

    def catch_up(self) -> None:
        """Read all events so far. Raises ``EngineError`` while the engine is starting."""
        with self._lock:
            self._read()  # even if its engine has ended
            engine = self._engine()
            if engine.telemetry is self._telemetry:
                return
            self._read()  # it may have ended just now
            self._begin(engine)
            self._telemetry, self._reader = engine.telemetry, engine.telemetry.reader(from_start=True)
            self._read()

    def _look(self) -> None:
        with suppress(EngineError):  # it is starting
            self.catch_up()

    def _read(self) -> None:
        for event in self._reader.read():
            for take in self._takers:
                self._give(event, take)

    def _give(self, event: TelemetryEvent, take: Taker) -> None:
        try:
            take(event)
        except Exception:
            if take not in self._failed:  # one traceback for a persistent error, not one for each event
                _log.exception("an event of the engine's telemetry could not be taken")
            self._failed.add(take)
