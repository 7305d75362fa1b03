"""Whether this process, not the server, makes requests and answers late: then TTFT and ITL measured here are too long."""

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
    """How late requests were sent and answers could be read in the last seconds.

    A request is late by what lies between the time when it was due, or was submitted, and the beginning of its sending:
    how long the connection takes is the network's and the server's. What arrives is read late when the loop that reads all
    streams is busy: a timer of that loop shows by how much.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sends: deque[tuple[int, float]] = deque(maxlen=_CAPACITY)
        self._reads: deque[tuple[int, float]] = deque(maxlen=_CAPACITY)

    def sent(self, due_ns: int, sent_ns: int) -> None:
        """Note a request that was due at one time and began to be sent at another."""
        with self._lock:
            self._sends.append((sent_ns, (sent_ns - due_ns) / 1e6))

    async def watch(self) -> None:
        """Measure by how much the running loop is late, until cancelled."""
        while True:
            begun_ns = self._clock.now_ns()
            await asyncio.sleep(_SAMPLE_S)
            now_ns = self._clock.now_ns()
            with self._lock:
                self._reads.append((now_ns, max(0.0, (now_ns - begun_ns) / 1e6 - 1000 * _SAMPLE_S)))

    @property
    def words(self) -> str | None:
        """What is late, in one line for people; ``None`` while nothing is."""
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
            found = sorted(late_ms for _, late_ms in samples)
        return found[int(0.95 * (len(found) - 1))] if found else 0.0
