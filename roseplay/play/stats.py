"""The figures of the KPI strip: rates and percentiles over the last seconds of traffic. The page adds the ITL."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from roseplay.engine.messages import StepRecord
from roseplay.recording.prefill_totals import PrefillTotals

WINDOW_NS = 15_000_000_000
RATE_NS = 2_000_000_000
CAPACITY = 1 << 16


class Samples:
    """The newest (time, value) pairs in fixed memory, for percentiles over a window of time."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._times = np.zeros(capacity, np.int64)
        self._values = np.zeros(capacity, np.float64)
        self._count = 0

    def add(self, time_ns: int, value: float) -> None:
        place = self._count % len(self._times)
        self._times[place], self._values[place] = time_ns, value
        self._count += 1

    def percentiles(self, since_ns: int, *percents: float) -> list[float | None]:
        """Returns percentiles of the values after ``since_ns``; ``None`` for each if there are none."""
        values = self._values[: self._count][self._times[: self._count] > since_ns]
        if not len(values):
            return [None] * len(percents)
        return [round(float(p), 2) for p in np.percentile(values, percents)]


class Stats:
    """Rates over the last two seconds, percentiles over the last 15 s *of traffic*.

    While the engine is idle the window does not move, so that the figures of a burst stay readable.
    """

    def __init__(self) -> None:
        self._ttft = Samples()
        self._tokens: deque[int] = deque(maxlen=CAPACITY)
        self._record: StepRecord | None = None
        self._running = self._waiting = 0
        self._latest_ns = 0

    def token(self, time_ns: int) -> None:
        self._tokens.append(time_ns)
        self._latest_ns = max(self._latest_ns, time_ns)

    def first_token(self, time_ns: int, ttft_ms: float) -> None:
        self._ttft.add(time_ns, ttft_ms)

    def step(self, record: StepRecord) -> None:
        self._record = record

    def live(self, unfinished: int) -> None:
        """Set how many requests have not ended: an idle engine makes no step records that could say so."""
        self._running = min(self._record.running if self._record else 0, unfinished)
        self._waiting = unfinished - self._running

    def figures(self, now_ns: int, totals: PrefillTotals) -> dict[str, Any]:
        """Returns the ``stats`` of a frame; ``in_all`` are ``totals``."""
        since = self._latest_ns - WINDOW_NS
        ttft_p50, ttft_p95 = self._ttft.percentiles(since, 50, 95)
        while self._tokens and self._tokens[0] <= now_ns - RATE_NS:
            self._tokens.popleft()
        record, known = self._record, totals.saved + totals.computed
        blocks = (
            (record.blocks_free, record.blocks_cached, record.blocks_active, record.blocks_shared)
            if record
            else (None,) * 4
        )
        return {
            "tok_s": round(len(self._tokens) * 1e9 / RATE_NS),
            "running": self._running,
            "waiting": self._waiting,
            "ttft_p50": ttft_p50,
            "ttft_p95": ttft_p95,
            "kv_total": sum(b for b in blocks if b is not None) if record else None,
            "kv_free": blocks[0],
            "kv_cached": blocks[1],
            "kv_active": blocks[2],
            "kv_shared": blocks[3],
            "saved_tokens": totals.saved,
            "saved_pct": round(100 * totals.saved / known, 1) if known else None,
            "in_all": totals.figures(),
            "step": record.step_id if record else None,
        }
