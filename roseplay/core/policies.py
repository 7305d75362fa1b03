"""Scheduling policies: which of the waiting requests is admitted next.

A policy decides only about requests that have never been admitted. It knows no clock: its choice depends on what has
arrived and what has been computed, so the same inputs give the same order, and ties go to the request that arrived
first. ``fair_share.py`` is the policy that is fair by tenant.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice

from roseplay.core.cache_entries import Match
from roseplay.core.request import Request

# By arrival.
Waiting = OrderedDict[int, Request]
Find = Callable[[Request], Match | None]

_CACHE_WINDOW = 64
_SPARE = 64


class Policy:
    """First come, first served; other policies override its methods.

    Attributes:
        changes: whether the choice may change although no request arrives, enters or ends.
    """

    changes = False

    def add(self, request: Request) -> None:
        """A request has arrived."""

    def begin_step(self, waiting: Waiting, num_admitted: int, running: Sequence[Request], find: Find) -> None:
        """A step is being scheduled: what has arrived since the last one may be chosen from now on.

        Args:
            num_admitted: number of requests that have been admitted so far, each counted once.
            running: the requests that have been admitted.
            find: returns the cached blocks that a request could use in this step.
        """

    def overdue(self, waiting: Waiting, num_admitted: int, num_cancelled: int, most: int) -> Request | None:
        """Returns the request that must be next because ``most`` later ones have overtaken it, or None.

        Args:
            num_cancelled: number of requests that arrived before the oldest one and ended without being admitted. All
                others of the ``arrival`` requests before it have been admitted.
        """
        oldest = next(iter(waiting.values()))
        return oldest if num_admitted + num_cancelled - oldest.arrival >= most else None

    def choose(self, waiting: Waiting) -> Request:
        """Returns the request to admit next."""
        return next(iter(waiting.values()))

    def admitted(self, request: Request, num_admitted: int) -> None:
        """A request has been admitted for the first time."""

    def returned(self, request: Request) -> None:
        """A request that had been admitted goes back to the queue."""

    def ended(self, request: Request) -> None:
        """A request has ended, whether it had been admitted or not."""


class LeastKey(Policy):
    """The request with the least key is next; a heap, in which requests that have left stay until they come first."""

    def __init__(self, key: Callable[[Request], int]) -> None:
        self._key = key
        self._heap: list[tuple[int, int]] = []

    def add(self, request: Request) -> None:
        heappush(self._heap, (self._key(request), request.arrival))

    def choose(self, waiting: Waiting) -> Request:
        if len(self._heap) > 2 * len(waiting) + _SPARE:  # those with a large key may not come first for a long time
            self._heap = [(self._key(request), arrival) for arrival, request in waiting.items()]
            heapify(self._heap)
        while self._heap[0][1] not in waiting:
            heappop(self._heap)
        return waiting[self._heap[0][1]]


class LongestPrefix(Policy):
    """The request with the most cached tokens is next, of the ``_CACHE_WINDOW`` that have waited longest.

    The cache is searched for each of these, which may take longer than a step if much is cached. So it is searched again
    only when requests have been admitted, and when a prompt or an answer is complete; not in each step that waits for
    blocks. This is SGLang's longest prefix match, which instead falls back to the order of arrival if the queue is long.
    """

    changes = True

    def __init__(self) -> None:
        self._find: Find = lambda _: None
        self._cached: dict[int, int] = {}  # tokens found, by arrival
        self._searched_at: tuple[int, list[int]] = 0, []

    def begin_step(self, waiting: Waiting, num_admitted: int, running: Sequence[Request], find: Find) -> None:
        self._find = find
        now = num_admitted, [request.request_id for request in running if request.num_tokens > request.prefill_end]
        if now != self._searched_at:
            self._cached, self._searched_at = {}, now

    def choose(self, waiting: Waiting) -> Request:
        first = list(islice(waiting.values(), _CACHE_WINDOW))
        for request in first:
            if request.arrival not in self._cached:
                match = self._find(request)
                self._cached[request.arrival] = 0 if match is None else match.end
        return max(first, key=lambda request: self._cached[request.arrival])  # the first of equal ones


def shortest() -> Policy:
    """The shortest prompt is next."""
    return LeastKey(lambda request: request.num_prompt_tokens)


def by_priority() -> Policy:
    """The request with the lowest value of ``SamplingParams.priority`` is next."""
    return LeastKey(lambda request: request.sampling.priority)
