"""The queue of waiting requests: first those that were admitted before, then the others in the order of a policy."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter

from roseplay.config import Knobs
from roseplay.core.fair_share import FairShare
from roseplay.core.policies import Find, LongestPrefix, Policy, Waiting, by_priority, shortest
from roseplay.core.request import Request

FCFS = "fcfs"
_POLICIES: Mapping[str, Callable[[], Policy]] = {
    FCFS: Policy,
    "shortest": shortest,
    "priority": by_priority,
    "lpm": LongestPrefix,
    "fair": FairShare,
}
by_turn = attrgetter("turn")


class WaitingQueue:
    """Waiting requests. All operations take constant or logarithmic time, except to change the policy.

    Requests that were preempted go back in front, in the order in which they were first admitted. Under any policy,
    a request that ``max_overtakes`` later ones have overtaken is next, in order of arrival.
    """

    def __init__(self) -> None:
        self._returned: list[Request] = []  # admitted before, by turn
        self._new: Waiting = OrderedDict()
        self._num_arrived = self._num_admitted = 0
        self._cancelled: list[int] = []  # a heap of the arrivals of requests that were never admitted
        self._num_cancelled = 0  # of these, the ones before the oldest request, which the heap no longer has
        self._name = FCFS
        self.policy = Policy()
        self._max_overtakes: int | None = None
        self._has_news = False

    def __len__(self) -> int:
        return len(self._returned) + len(self._new)

    def __iter__(self) -> Iterator[Request]:
        """Iterates over requests that were admitted before, by turn, then over the others in order of arrival."""
        return chain(self._returned, self._new.values())

    def add(self, request: Request) -> None:
        """Add a new request, and number its arrival."""
        request.arrival = self._num_arrived
        self._num_arrived += 1
        self._new[request.arrival] = request
        self.policy.add(request)
        self._has_news = True

    def put_back(self, request: Request) -> None:
        """Add a request that was admitted before."""
        insort(self._returned, request, key=by_turn)
        self.policy.returned(request)

    def begin_step(self, knobs: Knobs, running: Sequence[Request], find: Find) -> None:
        """Prepare to choose for the step that is being scheduled; see ``Policy.begin_step``."""
        if knobs.scheduling_policy != self._name:
            self._name = knobs.scheduling_policy
            self.policy = _POLICIES[self._name]()
            for request in self._new.values():
                self.policy.add(request)
        self._max_overtakes = knobs.max_overtakes
        self.policy.begin_step(self._new, self._num_admitted, running, find)
        self._has_news = False

    @property
    def head(self) -> Request:
        """The request to admit next; there must be one."""
        if self._returned:
            return self._returned[0]
        oldest = next(iter(self._new))
        while self._cancelled and self._cancelled[0] < oldest:
            heappop(self._cancelled)
            self._num_cancelled += 1
        overdue = None
        if self._max_overtakes is not None:
            counts = self._num_admitted, self._num_cancelled
            overdue = self.policy.overdue(self._new, *counts, self._max_overtakes)
        return overdue or self.policy.choose(self._new)

    def head_may_change(self, *, full: bool) -> bool:
        """Returns whether another request may be the head in a later step, though none arrives or leaves until then.

        Args:
            full: whether the batch is full until then, so that the head has no effect.
        """
        return self._name != FCFS and (self._has_news or (self.policy.changes and not full))

    def admit(self, request: Request) -> None:
        """Remove a request that is admitted."""
        if not self._remove(request):
            self._num_admitted += 1
            self.policy.admitted(request, self._num_admitted)

    def end(self, request: Request, *, waits: bool) -> None:
        """Note that a request has ended, and remove it if it ``waits``."""
        if waits and not self._remove(request):
            heappush(self._cancelled, request.arrival)
        self.policy.ended(request)

    def _remove(self, request: Request) -> bool:
        """Remove a request; returns whether it had been admitted before."""
        if request.turn < 0:
            del self._new[request.arrival]
            return False
        self._returned.remove(request)
        return True
