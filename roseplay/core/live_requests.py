"""The requests that have not ended: those that are running and those that wait in the queue."""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter

from roseplay.core.request import Request, RequestStatus

by_arrival = attrgetter("arrival")


class LiveRequests:
    """Running and waiting requests, each in order of arrival; a request keeps its place when it is preempted.

    Attributes:
        by_id: all live requests.
        running: the requests that have been admitted; only these hold blocks.
        waiting: the queue, head first.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Request] = {}
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self._next_arrival = 0

    def add(self, request: Request) -> None:
        """Append a new request to the queue. Raises ``ValueError`` if another live request has its id."""
        if request.request_id in self.by_id:
            raise ValueError(f"request id {request.request_id} is in use")
        request.arrival = self._next_arrival
        self._next_arrival += 1
        self.by_id[request.request_id] = request
        self.waiting.append(request)

    def admit_first(self) -> Request:
        """Move the head of the queue to the running requests, and return it."""
        request = self.waiting.popleft()
        request.status = RequestStatus.RUNNING
        request.prefill_end = request.num_tokens
        insort(self.running, request, key=by_arrival)
        return request

    def requeue(self, request: Request) -> None:
        """Move a running request back to the queue, in front of the requests that arrived later."""
        self.running.remove(request)
        request.status = RequestStatus.WAITING
        request.prefill_end = request.num_tokens
        index = 0
        while index < len(self.waiting) and self.waiting[index].arrival < request.arrival:
            index += 1
        self.waiting.insert(index, request)

    def remove(self, request: Request) -> None:
        """Remove a request that has ended."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        del self.by_id[request.request_id]
