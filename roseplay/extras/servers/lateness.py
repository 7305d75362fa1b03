"""Measures whether this process, not the server, delays requests and answers, and so makes TTFT and ITL too long."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from roseplay.clock import Clock

LATE_MS = 50.0
WINDOW_NS = 5_000_000_000
_SAMPLE_S = 0.1
_CAPACITY = 1 << 14


class Lateness:
    """How late requests were sent and answers were read in the last few seconds.

    A request's delay runs from when it was due, or submitted, to when sending began: the time to connect is due to the
    network and the server. Answers are read late when the loop that reads all streams is busy: a timer on that loop
    shows by how much.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sends: deque[tuple[int, float]] = deque(maxlen=_CAPACITY)
        self._reads: deque[tuple[int, float]] = deque(maxlen=_CAPACITY)

    def sent(self, due_ns: int, sent_ns: int) -> None:
        """Record when a request was due and when its sending began."""
        with self._lock:
            self._sends.append((sent_ns, (sent_ns - due_ns) / 1e6))

    async def watch(self) -> None:
        """Measure how late the running loop is, until cancelled."""
        while True:
            begun_ns = self._clock.now_ns()
            await asyncio.sleep(_SAMPLE_S)
            now_ns = self._clock.now_ns()
            with self._lock:
                self._reads.append((now_ns, max(0.0, (now_ns - begun_ns) / 1e6 - 1000 * _SAMPLE_S)))

    @property
    def words(self) -> str | None:
        """One line for people on what is late; ``None`` while nothing is."""
        late = []
        if (send_ms := self._p95(self._sends)) > LATE_MS:
            late.append(f"requests are sent {send_ms:,.0f} ms after they are due")
        if (read_ms := self._p95(self._reads)) > LATE_MS:
            late.append(f"tokens are read {read_ms:,.0f} ms after they arrive")
        if not late:
            return None
        return (
            f"This page is late, not the server: {' and '.join(late)} (p95 of 5 s). The latencies shown include that: send"
            " less, or run the page on another machine."
        )

    def _p95(self, samples: deque[tuple[int, float]]) -> float:
        since_ns = self._clock.now_ns() - WINDOW_NS
        with self._lock:
            while samples and samples[0][0] < since_ns:
                samples.popleft()
            values = sorted(late_ms for _, late_ms in samples)
        return values[int(0.95 * (len(values) - 1))] if values else 0.0
