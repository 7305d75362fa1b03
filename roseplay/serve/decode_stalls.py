"""Finds tokens that came late, and why, from the records of steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from statistics import median

from roseplay.engine.telemetry import StepEvent, TokenEvent

CAUSES = ("preemption", "prompts", "host", "other")
_LATE = 1.5  # a gap this many times the usual one is a stall
_KEPT = 64  # steps without prompts from which the usual gap is known
_LEAST = 5


class DecodeStalls:
    """Compares each token's gap with the usual one: the median over the last steps that computed no prompts.

    A stall is what a gap of more than 1.5 times the usual one has beyond it. Its cause is the first that applies:
    ``preemption`` of the request; ``prompts``, computed in a step of this gap; ``host``, if the host's part of the step
    grew by at least half of the stall; ``other``.
    """

    def __init__(self) -> None:
        self._gaps_ns: deque[int] = deque(maxlen=_KEPT)
        self._host_ns: deque[int] = deque(maxlen=_KEPT)
        self._live: set[int] = set()
        self._preempted: set[int] = set()
        self._prompts_ns = 0  # end of the last step that computed prompts

    def take(self, event: StepEvent) -> Iterator[tuple[str, float]]:
        """Returns the cause and the seconds of each stall that ends with a token of this step."""
        record = event.record
        self._preempted.update(record.preempted)
        if record.prompt_tokens:
            self._prompts_ns = record.end_ns
        gaps = [token.itl_ns for token in event.tokens if token.itl_ns]
        if len(self._gaps_ns) >= _LEAST and gaps:
            usual = median(self._gaps_ns)
            if max(gaps) > _LATE * usual:
                usual_host = median(self._host_ns)
                for token in event.tokens:
                    if token.itl_ns and token.itl_ns > _LATE * usual:
                        stall = token.itl_ns - usual
                        yield self._cause(token, token.itl_ns, record.host_ns - usual_host >= stall / 2), stall / 1e9
        if self._preempted:
            self._preempted.difference_update(token.request_id for token in event.tokens)
            self._preempted &= self._live  # a request may be preempted after its end was reported
        if gaps and not record.prompt_tokens:
            self._gaps_ns.append(int(median(gaps)))
            self._host_ns.append(record.host_ns)

    def submitted(self, request_id: int) -> None:
        """Note a new request."""
        self._live.add(request_id)

    def ended(self, request_id: int) -> None:
        """Forget a request, after the next step: that may be the one that drew its last token."""
        self._live.discard(request_id)

    def _cause(self, token: TokenEvent, gap_ns: int, host_grew: bool) -> str:
        if token.request_id in self._preempted:
            return "preemption"
        if self._prompts_ns > token.time_ns - gap_ns:
            return "prompts"
        return "host" if host_grew else "other"
