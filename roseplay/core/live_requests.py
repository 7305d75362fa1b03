"""The requests that have not ended: those that are running, and the queue of those that wait."""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter

from roseplay.core.request import Request, RequestStatus

by_arrival = attrgetter("arrival")


class LiveRequests:
    """Both lists are in order of arrival, which a request keeps through preemption.

    Attributes:
        by_id: all of them.
        running: admitted; only these hold blocks.
        waiting: the queue, its head first.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Request] = {}
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self._next_arrival = 0

    def add(self, request: Request) -> None:
        """Append a new request to the queue. Raises ``ValueError`` when its id is that of a live request."""
        if request.request_id in self.by_id:
            raise ValueError(f"request id {request.request_id} is in use")
        request.arrival = self._next_arrival
        self._next_arrival += 1
        self.by_id[request.request_id] = request
        self.waiting.append(request)

    def admit_first(self) -> Request:
        """Move the head of the queue to the running requests."""
        request = self.waiting.popleft()
        request.status = RequestStatus.RUNNING
        request.prefill_end = request.num_tokens
        insort(self.running, request, key=by_arrival)
        return request

    def requeue(self, request: Request) -> None:
        """Move a running request back to the queue, before everybody who arrived later."""
        self.running.remove(request)
        request.status = RequestStatus.WAITING
        request.prefill_end = request.num_tokens
        index = 0
        while index < len(self.waiting) and self.waiting[index].arrival < request.arrival:
            index += 1
        self.waiting.insert(index, request)

    def remove(self, request: Request) -> None:
        """Take out a request that has ended."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        del self.by_id[request.request_id]
