"""Splits each request's time to first token by its cause, from the records of steps.

A step's record says what kept requests out of it (``StepRecord.held_by``). The time of such steps is added up by cause,
so that a request's waits are differences of these sums, whatever the number of requests that wait.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from roseplay.engine.records import StepRecord

_QUEUE, _BLOCKS, _BUDGET = range(3)
# By ``StepRecord.held_by``. Anything else is the queue: the batch is full, or its turn has not come.
_CAUSE_OF = {"blocks": _BLOCKS, "prefill": _BUDGET, "interval": _BUDGET}


class TTFTCauses(NamedTuple):
    """The parts of a time to first token, in seconds; they add up to it."""

    queue_s: float  # waiting in line: for a place in the batch, or for the step in progress at its arrival to end
    blocks_s: float  # waiting for free KV blocks
    budget_s: float  # waiting for prefill budget, or the prefill interval, before and between the parts of its prompt
    computing_s: float  # the steps that worked on it, until its token was published


class _Wait:
    """The waits of a request so far, in ns by cause, and the sums up to which they are counted."""

    __slots__ = ("admitted", "counted", "parts")

    def __init__(self, counted: list[int]) -> None:
        self.admitted = False
        self.counted = counted
        self.parts = [0, 0, 0]

    def work(self, before: list[int], after: list[int]) -> None:
        """Note a step that works on it: it waited until the sums were ``before``."""
        if self.counted is not after:
            for cause, (until, since) in enumerate(zip(before, self.counted, strict=True)):
                # a request in the batch no longer waits in line
                self.parts[_BUDGET if self.admitted and cause == _QUEUE else cause] += until - since
        self.counted, self.admitted = after, True


class CauseCounter:
    """The waits of all requests without a token; ``submitted`` and ``forget`` may be called from any thread."""

    def __init__(self) -> None:
        self._new: dict[int, int] = {}  # request id -> ns of its submission: no step has ended since
        self._waits: dict[int, _Wait] = {}
        self._sums = [0, 0, 0]
        self._end_ns = 0
        self._lock = threading.Lock()

    def submitted(self, request_id: int, time_ns: int) -> None:
        with self._lock:
            self._new[request_id] = time_ns

    def forget(self, request_id: int) -> None:
        with self._lock:
            self._new.pop(request_id, None)
            self._waits.pop(request_id, None)

    def take(self, record: StepRecord) -> None:
        """Count the time of a step; called with the records of all steps in order."""
        before, after = self._sums, list(self._sums)
        cause = _CAUSE_OF.get(record.held_by or "", _QUEUE)
        after[cause] += record.end_ns - self._end_ns  # also the time between steps
        working = {entry.request_id for entry in record.entries if not entry.decode_tokens}
        with self._lock:
            for request_id, since_ns in list(self._new.items()):
                if since_ns < record.end_ns:
                    del self._new[request_id]
                    wait = self._waits[request_id] = _Wait(after)
                    wait.parts[_QUEUE] += max(0, record.start_ns - since_ns)
                    if request_id not in working:
                        in_progress = since_ns > record.start_ns
                        wait.parts[_QUEUE if in_progress else cause] += record.end_ns - max(record.start_ns, since_ns)
            for request_id in record.preempted:
                if request_id in self._waits:
                    self._waits[request_id].admitted = False
            for request_id in working & self._waits.keys():
                self._waits[request_id].work(before, after)
        self._sums, self._end_ns = after, record.end_ns

    def first_token(self, request_id: int, ttft_s: float) -> TTFTCauses | None:
        """Returns the parts of a request's time to first token; ``None`` if no step of it was counted."""
        with self._lock:
            self._new.pop(request_id, None)
            wait = self._waits.pop(request_id, None)
        if wait is None:
            return None
        queue_s, blocks_s, budget_s = (part / 1e9 for part in wait.parts)
        return TTFTCauses(queue_s, blocks_s, budget_s, max(0.0, ttft_s - queue_s - blocks_s - budget_s))
