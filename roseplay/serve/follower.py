"""Reads an engine's telemetry as it arrives, for figures that must not miss an event."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from roseplay.engine.engine_like import EngineLike
from roseplay.engine.errors import EngineError
from roseplay.engine.telemetry import Telemetry, TelemetryEvent

FOLLOW_S = 0.25  # far less than the telemetry's log takes to overflow
_log = logging.getLogger(__name__)

Taker = Callable[[TelemetryEvent], None]


class Followed(Protocol):
    """Something with an engine; while that is starting, the attribute raises ``EngineError``."""

    @property
    def engine(self) -> EngineLike: ...


class Follower:
    """Calls functions with each event, once and in order, on a thread of its own.

    The first exception of each function is logged; the other functions and later events are not affected. When another
    engine takes the place of the first one, the rest of the first one's events come before those of the other.

    Args:
        begin: called with each engine, before its first event.
    """

    def __init__(
        self, followed: Followed, *takers: Taker, begin: Callable[[EngineLike], object] = lambda engine: None
    ) -> None:
        self._followed, self._takers, self._begin = followed, takers, begin
        self._telemetry: Telemetry | None = None
        self._cursor = 0
        self._failed: set[Taker] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="roseplay-follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop after the events so far."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def catch_up(self) -> None:
        """Read all events so far. Raises ``EngineError`` while the engine is starting."""
        with self._lock:
            if self._telemetry is not None:
                self._read(self._telemetry)  # even if its engine has ended
            engine = self._followed.engine
            if engine.telemetry is self._telemetry:
                return
            if self._telemetry is not None:
                self._read(self._telemetry)  # it may have ended just now
            self._begin(engine)
            self._telemetry, self._cursor = engine.telemetry, 0
            self._read(engine.telemetry)

    def _read(self, telemetry: Telemetry) -> None:
        self._cursor, events = telemetry.since(self._cursor)
        for event in events:
            for take in self._takers:
                self._give(event, take)

    def _give(self, event: TelemetryEvent, take: Taker) -> None:
        try:
            take(event)
        except Exception:
            if take not in self._failed:  # one traceback for a persistent error, not one for each event
                _log.exception("an event of the engine's telemetry could not be taken")
            self._failed.add(take)

    def _run(self) -> None:
        failed = False
        ended = False
        while not ended:
            ended = self._stopped.wait(FOLLOW_S)  # and once more at the end
            try:
                self.catch_up()
            except EngineError:  # it is starting
                continue
            except Exception:
                if not failed:  # as above
                    _log.exception("the engine's telemetry could not be read")
                failed = True
