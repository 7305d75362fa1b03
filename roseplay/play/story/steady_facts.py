"""Facts on how steady traffic or that of a file is answered, since it began or since a setting was changed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roseplay.recording.run import Run
from roseplay.recording.schema import Frame
from roseplay.traffic.metrics import percentile

LEAST_MS = 5000.0  # anything shorter is not conclusive
LEAST_DONE = 10  # answers needed for a meaningful percentile
_KEEP_S = 60
KINDS = ("steady", "own")  # kinds of requests


@dataclass(frozen=True, kw_only=True)
class SteadyFacts:
    """A stretch of steady traffic, or of a file's, under the same settings."""

    own: bool  # whether all of it was from a file
    knobs: Mapping[str, Any]
    seconds: float  # its length
    sent: int  # number of requests that arrived
    rate: float  # of these, per second
    done: int  # number of completed answers
    worst_ms: float | None  # the longest gap between two tokens of any answer
    ttft_p95: float  # of its requests, in ms


class SteadyWatch:
    """Collects facts of a run from a given time on, and keeps the latest minute."""

    def __init__(self, t: float, run: Run) -> None:
        self.begun = t
        self.knobs = dict(run.knobs)
        self._run = run
        self.latest = t  # arrival
        self._worst: deque[tuple[int, float]] = deque(maxlen=_KEEP_S)  # (second, longest gap)

    def take(self, frame: Frame) -> None:
        for request_id, event, t, _ in frame["requests"]:
            if event == "submitted" and self._run.requests[request_id].kind in KINDS:
                self.latest = max(self.latest, t)
        for token in frame["tokens"]:
            if token.itl_ms and token.t - token.itl_ms >= self.begun:
                self._gap(math.floor(token.t / 1000), token.itl_ms)

    def _gap(self, second: int, ms: float) -> None:
        if self._worst and self._worst[-1][0] == second:
            ms = max(ms, self._worst.pop()[1])
        self._worst.append((second, ms))

    def facts(self, now: float, last_ms: float = 1000.0 * _KEEP_S, *, ended: bool = False) -> SteadyFacts | None:
        """Returns the facts of the stretch's last ``last_ms``; ``None`` if that is too little to be conclusive.

        Args:
            ended: whether all of it has been answered; then anything that took time is conclusive.
        """
        since = max(self.begun, now - last_ms)
        arrived = self._run.arrived_since(since, KINDS)
        done = [request for request in arrived if request.finished is not None and request.ended_well]
        p95 = percentile(sorted(request.ttft_ms for request in arrived if request.ttft_ms is not None), 95)
        if p95 is None or now <= since or not (ended or (now - since >= LEAST_MS and len(done) >= LEAST_DONE)):
            return None
        return SteadyFacts(
            own=all(request.kind == "own" for request in arrived),
            knobs=self.knobs,
            seconds=(now - since) / 1000,
            sent=len(arrived),
            rate=1000 * len(arrived) / (now - since),
            done=len(done),
            worst_ms=max((ms for second, ms in self._worst if 1000 * second >= since - 1000), default=None),
            ttft_p95=p95,
        )
