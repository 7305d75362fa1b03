"""The clients' own record of a run: what they sent, stopped and read, and whatever went wrong."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_BUSY = "requests are already waiting"  # an allowed refusal of a valid request: the queue is full
# 503 is allowed for a block while the engine computes nothing (the lab is running) or a step takes long, and for the
# engine's health, which the caller evaluates.
_MAY_BE_UNAVAILABLE = ("/ui/block/", "/health")
MAX_COMPLAINTS = 200


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that a client sent and knows by its id."""

    kind: str  # ``lane``, ``burst`` or ``api``, as on the page
    # The length of its answer if it is not stopped, for answers that ignore end-of-sequence tokens; else None.
    exact: int | None
    asked_s: float  # when the client began to send it


@dataclass(frozen=True, slots=True)
class Stop:
    """A client asked for requests to be ended: those with these ids, or all. Times are from ``time.monotonic``."""

    ids: frozenset[int] | None
    begun_s: float
    ended_s: float


@dataclass
class Journal:
    """Shared by all clients of a run. Every method may be called from any thread.

    Attributes:
        read: the number of tokens and the reason for the end of each answer that a tab has read to its end.
    """

    stopped: threading.Event = field(default_factory=threading.Event)
    sent: dict[int, Sent] = field(default_factory=dict)
    stops: list[Stop] = field(default_factory=list)
    read: dict[int, tuple[int, str | None]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pause(self, seconds: float) -> bool:
        """Wait; returns True as soon as the run ends."""
        return self.stopped.wait(seconds)

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    def complain(self, what: str) -> None:
        """Record something that must not happen."""
        with self._lock:
            self.counts["complaints"] += 1
            if len(self.complaints) < MAX_COMPLAINTS:
                self.complaints.append(what)

    def answered(self, path: str, status: int, body: bytes) -> None:
        """Check an HTTP response: any 5xx is wrong, except a 503 from some routes."""
        if status >= 500 and not (status == 503 and path.startswith(_MAY_BE_UNAVAILABLE)):
            self.complain(f"{path} answered {status}: {body[:300].decode(errors='replace')}")

    def refused(self, what: str, reason: str) -> None:
        """Record that a valid request was refused."""
        self.count("refused")
        if _BUSY not in reason:
            self.complain(f"{what} was refused: {reason[:300]}")

    def submitted(self, kind: str, ids: Iterable[int], asked_s: float, exact: int | None) -> list[int]:
        """Record the requests that a call returned; returns their ids."""
        known = list(ids)
        for request_id in known:
            if request_id in self.sent:
                self.complain(f"request {request_id} was given to two senders")
            self.sent[request_id] = Sent(kind, exact, asked_s)
        self.count(f"sent {kind}", len(known))
        return known

    @contextmanager
    def stopping(self, ids: Iterable[int] | None) -> Iterator[None]:
        """Wraps a call that ends requests: those with these ids, or all."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.stops.append(Stop(None if ids is None else frozenset(ids), begun, time.monotonic()))


class Actor(threading.Thread):
    """A client that acts repeatedly, at random times from its own generator.

    Args:
        name: seeds the generator, together with the run's seed.
        every_s: mean time between acts.
        act: one act; any exception is recorded as a complaint.
    """

    def __init__(
        self, journal: Journal, name: str, seed: int, every_s: float, act: Callable[[random.Random], Any]
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._journal, self._every_s, self._act = journal, every_s, act
        self._random = random.Random(f"{seed} {name}")

    def run(self) -> None:
        while not self._journal.pause(min(self._random.expovariate(1 / self._every_s), 4 * self._every_s)):
            try:
                self._act(self._random)
                self._journal.count(f"acts of {self.name}")
            except Exception as error:
                self._journal.complain(f"{self.name}: {type(error).__name__}: {error}")
