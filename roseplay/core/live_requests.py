"""The requests that have not ended: those that are running and those that wait in the queue."""

from __future__ import annotations

from bisect import insort

from roseplay.core.request import Request, RequestStatus
from roseplay.core.step import Step
from roseplay.core.waiting_queue import WaitingQueue, by_turn


class LiveRequests:
    """Running and waiting requests. A request takes its turn when it is first admitted, and keeps it when preempted.

    Attributes:
        by_id: all live requests.
        running: the requests that have been admitted, in order of their turns; only these hold blocks.
        waiting: the queue.
        num_decode_steps: number of steps that only decoded since the last one that computed prompt tokens.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Request] = {}
        self.running: list[Request] = []
        self.waiting = WaitingQueue()
        self.num_decode_steps = 1 << 60
        self._next_turn = 0

    def add(self, request: Request) -> None:
        """Append a new request to the queue. Raises ``ValueError`` if another live request has its id."""
        if request.request_id in self.by_id:
            raise ValueError(f"request id {request.request_id} is in use")
        self.by_id[request.request_id] = request
        self.waiting.add(request)

    def admit(self, request: Request) -> None:
        """Move a waiting request to the running requests."""
        self.waiting.admit(request)
        if request.turn < 0:
            request.turn = self._next_turn
            self._next_turn += 1
        request.status = RequestStatus.RUNNING
        request.prefill_end = request.num_tokens
        insort(self.running, request, key=by_turn)

    def defer_prompts(self, step: Step, interval: int) -> bool:
        """Returns whether prompts wait because fewer than ``interval`` steps only decoded since the last one with prompts.

        They never wait in a step that decodes nothing.
        """
        if not step.decode_tokens or self.num_decode_steps >= interval:
            return False
        if self.waiting or any(request.is_prefilling for request in self.running):
            step.held_by = "interval"
        return True

    def requeue(self, request: Request) -> None:
        """Move a running request back to the queue, in front of the requests that were admitted later or never."""
        self.running.remove(request)
        request.status = RequestStatus.WAITING
        request.prefill_end = request.num_tokens
        self.waiting.put_back(request)

    def remove(self, request: Request) -> None:
        waits = request.status is RequestStatus.WAITING
        if not waits:
            self.running.remove(request)
        self.waiting.end(request, waits=waits)
        request.status = RequestStatus.FINISHED
        del self.by_id[request.request_id]
