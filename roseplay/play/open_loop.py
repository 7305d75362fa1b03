"""Open-loop traffic of a tab, sent by a thread of its own, and how far it has got."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.formats.text import one_line
from roseplay.recording.request_registry import TrackedRequest
from roseplay.traffic.sending import send_when_due

MOST_WAITING = 64  # queued requests at which a traffic stops

# Submits request ``index``, which was due at this time of the engine's clock.
Send = Callable[[int, int], TrackedRequest]


class OpenLoop(ABC):
    """Traffic of one tab, sent by its own thread from ``start`` on. Subclasses define what is due when.

    Args:
        name: of the thread.
        is_watched: returns whether the tab is still open; once it is not, the traffic ends.
        clock: the engine's.
    """

    def __init__(self, name: str, is_watched: Callable[[], bool], clock: Clock = SYSTEM_CLOCK) -> None:
        self._is_watched = is_watched
        self._clock = clock
        self._stopping = threading.Event()
        self._abort = False
        self._unfinished: list[TrackedRequest] = []  # replaced, never changed: other threads read it
        self._sent = 0
        self._begun_ns = clock.now_ns()
        self._ended_ns: int | None = None
        self._reason: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it sends no more, up to ``timeout`` seconds."""
        self._thread.join(timeout)

    def stop(self, *, abort: bool = False) -> None:
        """Send no more; sent requests are still answered. ``abort``: abort a request that is being submitted now."""
        self._abort = self._abort or abort
        self._stopping.set()

    @property
    def running(self) -> bool:
        return self._ended_ns is None and not self._stopping.is_set()

    def figures(self) -> dict[str, object]:
        """Returns whether it is running, how much was sent and answered, and why it stopped by itself, if it did."""
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
        """Returns when the next request is due, in seconds since the beginning; ``None`` if there are no more."""

    @abstractmethod
    def _send(self) -> Send:
        """Returns the function that submits the next request."""

    def _limit(self) -> str | None:
        """Returns why it has to stop; ``None`` if it does not."""
        if not self._is_watched():
            return "its tab has gone"
        waiting = _waiting(self._unfinished)
        return f"{waiting} requests were waiting, the limit is {MOST_WAITING}" if waiting >= MOST_WAITING else None

    def _seconds(self) -> float:
        """Returns how long it has run, in seconds."""
        until = self._clock.now_ns() if self._ended_ns is None else self._ended_ns
        return (until - self._begun_ns) / 1e9

    def _run(self) -> None:
        try:
            loop = (self._clock, self._stopping, self._due, self._submit)
            self._reason = send_when_due(*loop, start_ns=self._begun_ns, limit=self._limit)
        except (EngineBusyError, EngineError, ValueError) as error:
            self._reason = one_line(error)
        finally:
            self._ended_ns = self._clock.now_ns()

    def _submit(self, due_ns: int) -> None:
        tracked = self._send()(self._sent, due_ns)
        if self._abort or not self._is_watched():  # while it was being submitted
            tracked.stream.cancel()
        self._unfinished = [*(request for request in self._unfinished if not request.finished), tracked]
        self._sent += 1


def _waiting(requests: list[TrackedRequest]) -> int:
    """Returns how many may be waiting: another server does not report a start, so until the first token."""
    unfinished = (request.stream.metrics for request in requests if not request.finished)
    return sum(metrics.scheduled_ns is None and metrics.first_token_ns is None for metrics in unfinished)
