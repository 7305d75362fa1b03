"""The header's figures that the server computes: rates and counts. The page adds the latencies."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from roseplay.engine.records import StepRecord
from roseplay.engine.simulated import waits_grow
from roseplay.engine.telemetry import Load, TokenEvent
from roseplay.recording.request_registry import PrefillTotals

RATE_NS = 2_000_000_000
CAPACITY = 1 << 16
FIRST_TOKENS_NS = 20_000_000_000  # the time by which it is judged whether the engine is saturated
_ARRIVED_NS = 5_000_000_000  # requests that arrived within less are one burst


class Stats:
    """Tokens per second over the last two seconds, and counts as of the newest step or another server's last report.

    Args:
        remote: whether another server computes, so that there are no step records.
    """

    def __init__(self, *, remote: bool = False) -> None:
        self._remote = remote
        self._first: deque[tuple[int, int]] = deque(maxlen=CAPACITY)
        self._tokens: deque[tuple[int, int]] = deque(maxlen=CAPACITY)  # (time in ns, number of tokens)
        self._record: StepRecord | None = None
        self._load: Load | None = None
        self._running = 0
        self._waiting: int | None = 0

    def tokens(self, tokens: Sequence[TokenEvent]) -> None:
        """Count the tokens of a step."""
        self._tokens.extend(Counter(token.time_ns for token in tokens).items())

    def first_token(self, submitted_ns: int | None, time_ns: int) -> None:
        """Record a request's first token."""
        if submitted_ns is not None:
            self._first.append((time_ns, submitted_ns))

    def step(self, record: StepRecord) -> None:
        self._record = record

    def load(self, load: Load) -> None:
        self._load = load

    def live(self, unfinished: int) -> None:
        """Set the number of unfinished requests, since an idle engine makes no step records that could show it.

        Another server may have other clients, so the numbers that it reports take precedence. If it reports none, it is
        unknown how many of our requests wait.
        """
        load = self._load
        if load is not None and load.running is not None and load.waiting is not None:
            self._running, self._waiting = load.running, load.waiting
        elif self._remote:
            self._running, self._waiting = unfinished, None
        else:
            self._running = min(self._record.running if self._record else 0, unfinished)
            self._waiting = unfinished - self._running

    def figures(self, now_ns: int, totals: PrefillTotals) -> dict[str, Any]:
        """Returns the ``stats`` of a frame; ``in_all`` are ``totals``."""
        while self._tokens and self._tokens[0][0] <= now_ns - RATE_NS:
            self._tokens.popleft()
        record, known = self._record, totals.saved + totals.computed
        blocks = {f"kv_{of}": getattr(record, f"blocks_{of}", None) for of in ("free", "cached", "active", "shared")}
        return {
            "tok_s": round(sum(count for _, count in self._tokens) * 1e9 / RATE_NS),
            "running": self._running,
            "waiting": self._waiting,
            "kv_total": sum(blocks.values()) if record else None,
            **blocks,
            "kv_used": self._load.kv_usage if self._load else None,
            "saved_tokens": totals.saved,
            "saved_pct": round(100 * totals.saved / known, 1) if known else None,
            "in_all": totals.figures(),
            "step": record.step_id if record else None,
            "saturated": self._is_saturated(now_ns),
        }

    def _is_saturated(self, now_ns: int) -> bool:
        """Whether requests wait and, of those with a first token lately, later arrivals waited clearly longer for it."""
        while self._first and self._first[0][0] <= now_ns - FIRST_TOKENS_NS:
            self._first.popleft()
        arrived = sorted((submitted_ns, (time_ns - submitted_ns) / 1e9) for time_ns, submitted_ns in self._first)
        if not self._waiting or not arrived or arrived[-1][0] - arrived[0][0] < _ARRIVED_NS:
            return False
        return waits_grow([ttft_s for _, ttft_s in arrived])
