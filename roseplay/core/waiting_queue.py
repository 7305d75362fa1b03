"""The queue of waiting requests: first those that were admitted before, then the others in the order of a policy."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        self._num_arrived = 0
        self._name = FCFS
        self._policy = Policy()
        self._max_overtakes: int | None = None
        self._has_news = False

    def __len__(self) -> int:
        return len(self._returned) + len(self._new)

    def __iter__(self) -> Iterator[Request]:
        """Iterates over requests that were admitted before, by turn, then over the others in order of arrival."""
        return chain(self._returned, self._new.values())

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def _num_left(self) -> int:
        """The number of requests that have left the queue for the first time."""
        return self._num_arrived - len(self._new)

    def add(self, request: Request) -> None:
        """Add a new request, and number its arrival."""
        request.arrival = self._num_arrived
        self._num_arrived += 1
        self._new[request.arrival] = request
        self._policy.add(request)
        self._has_news = True

    def put_back(self, request: Request) -> None:
        """Add a request that was admitted before."""
        insort(self._returned, request, key=by_turn)
        self._policy.returned(request)

    def begin_step(self, knobs: Knobs, running: Sequence[Request], find: Find) -> None:
        """Prepare to choose for the step that is being scheduled; see ``Policy.begin_step``."""
        if knobs.scheduling_policy != self._name:
            self._name = knobs.scheduling_policy
            self._policy = _POLICIES[self._name]()
            for request in self._new.values():
                self._policy.add(request)
        self._max_overtakes = knobs.max_overtakes
        self._policy.begin_step(self._new, self._num_left, running, find)
        self._has_news = False

    @property
    def head(self) -> Request:
        """The request to admit next; there must be one."""
        if self._returned:
            return self._returned[0]
        overdue = None
        if self._max_overtakes is not None:
            overdue = self._policy.overdue(self._new, self._num_left, self._max_overtakes)
        return overdue or self._policy.choose(self._new)

    def head_may_change(self, *, full: bool) -> bool:
        """Returns whether another request may be the head in a later step, though none arrives or leaves until then.

        Args:
            full: whether the batch is full until then, so that the head has no effect.
        """
        return self._name != FCFS and (self._has_news or (self._policy.changes and not full))

    def admit(self, request: Request) -> None:
        """Remove a request that is admitted."""
        if not self._remove(request):
            self._policy.admitted(request, self._num_left)

    def end(self, request: Request, *, waits: bool) -> None:
        """Note that a request has ended, and remove it if it ``waits``."""
        if waits:
            self._remove(request)
        self._policy.ended(request)

    def _remove(self, request: Request) -> bool:
        """Remove a request; returns whether it had been admitted before."""
        if request.turn < 0:
            del self._new[request.arrival]
            return False
        self._returned.remove(request)
        return True
