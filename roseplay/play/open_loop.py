"""Traffic in an open loop: a thread sends requests when they are due, whether or not earlier ones have been answered."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.formats.text import one_line
from roseplay.recording.request_registry import TrackedRequest

MOST_WAITING = 64  # requests of one traffic that wait in the queue
_LOOK_S = 0.5  # how often it looks whether its tab is still there

# Submits request ``index``, which was due at a time of the engine's clock.
Send = Callable[[int, int], TrackedRequest]


class OpenLoop(ABC):
    """Traffic of one tab, sent by a thread of its own from ``start`` on. Subclasses say what is due when.

    Args:
        name: of the thread.
        is_watched: whether somebody still looks at the tab; once nobody does, the traffic ends.
        clock: the engine's.
    """

    def __init__(self, name: str, is_watched: Callable[[], bool], clock: Clock = SYSTEM_CLOCK) -> None:
        self._is_watched = is_watched
        self._clock = clock
        self._stopping = threading.Event()
        self._abort = False
        self._unfinished: list[TrackedRequest] = []  # replaced, never changed: others read it
        self._sent = 0
        self._begun_ns = clock.now_ns()
        self._ended_ns: int | None = None
        self._reason: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, abort: bool = False) -> None:
        """Send no more; what was sent is answered. ``abort``: a request that is being submitted now is aborted."""
        self._abort = self._abort or abort
        self._stopping.set()

    @property
    def running(self) -> bool:
        return self._ended_ns is None and not self._stopping.is_set()

    def figures(self) -> dict[str, Any]:
        """Returns whether it runs, what was sent and answered, and why it stopped by itself, if it did."""
        sent = self._sent
        unfinished = [tracked for tracked in self._unfinished if not tracked.finished]
        return {
            "on": self.running,
            "sent": sent,
            "done": max(0, sent - len(unfinished)),
            "waiting": _waiting(unfinished),
            "seconds": round(self._seconds()),
            "stopped": self._reason,
        }

    @abstractmethod
    def _due(self) -> float | None:
        """Returns when the next request is due, in seconds since the beginning; ``None`` if none follows."""

    @abstractmethod
    def _send(self) -> Send:
        """Returns what submits it."""

    def _limit(self) -> str | None:
        """Returns why it has to stop, if it has."""
        if not self._is_watched():
            return "its tab has gone"
        waiting = _waiting(self._unfinished)
        return f"{waiting} requests were waiting, the limit is {MOST_WAITING}" if waiting >= MOST_WAITING else None

    def _seconds(self) -> float:
        """Returns how long it has run."""
        until = self._clock.now_ns() if self._ended_ns is None else self._ended_ns
        return (until - self._begun_ns) / 1e9

    def _run(self) -> None:
        try:
            self._reason = self._send_all()
        except (EngineBusyError, EngineError, ValueError) as error:
            self._reason = one_line(error)
        finally:
            self._ended_ns = self._clock.now_ns()

    def _send_all(self) -> str | None:
        """Send requests until there is a reason to stop; returns it, ``None`` where all were sent or ``stop`` was called."""
        while not self._stopping.is_set():
            reason = self._limit()
            due = self._due()
            if reason or due is None:
                return reason
            delay = due - self._seconds()
            if delay > 0:
                self._clock.wait(self._stopping, min(delay, _LOOK_S))
                continue
            tracked = self._send()(self._sent, self._begun_ns + int(due * 1e9))
            if self._abort or not self._is_watched():  # while it was being submitted
                tracked.stream.cancel()
            self._unfinished = [*(one for one in self._unfinished if not one.finished), tracked]
            self._sent += 1
        return None


def _waiting(requests: list[TrackedRequest]) -> int:
    return sum(_waits(one) for one in requests)


def _waits(request: TrackedRequest) -> bool:
    """Another server does not say when it has begun with a request: until its first token, it may wait."""
    metrics = request.stream.metrics
    return metrics.scheduled_ns is None and metrics.first_token_ns is None and not request.finished
