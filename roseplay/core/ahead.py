"""Scheduling one step ahead: step n + 1 is built while step n still runs, before step n's tokens are known.

Until a token that step n draws is known, a ``PLACEHOLDER`` stands for it in its request's ``token_ids``; the model
runner substitutes the drawn token on the device. A block enters the prefix cache only once all of its tokens are known,
and a request that ends while a step still writes to its blocks keeps them until that step is over. The placeholders
follow vLLM's asynchronous scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from roseplay.core.request import PLACEHOLDER, Request, RequestStatus
from roseplay.core.step import Step, StepEntry


class StepsInFlight:
    """Tracks which steps are over, which one is assumed to succeed, and which requests ended while being computed.

    Args:
        release: releases a request's blocks.
    """

    def __init__(self, release: Callable[[Request], None]) -> None:
        self._release = release
        self._over = -1  # the last step whose outcome is known
        self._assumed: Step | None = None
        self.leaving: list[Request] = []

    def is_writing_for(self, request: Request) -> bool:
        """Returns whether a step that is still in flight computes something for the request."""
        return request.last_step > self._over

    def assume(self, step: Step) -> None:
        """Give each request that samples in ``step`` a placeholder for its token."""
        self._assumed = step
        for entry in step.entries:
            if entry.samples and entry.request.status is RequestStatus.RUNNING:
                entry.request.token_ids.append(PLACEHOLDER)

    def is_assumed(self, step: Step) -> bool:
        """Returns whether ``step`` was passed to ``assume`` and has not been settled yet."""
        return self._assumed is step

    def end(self, request: Request) -> None:
        """Release the blocks of a request that has ended, now or once no step writes to them any more."""
        if self.is_writing_for(request):
            self.leaving.append(request)
        else:
            self._release(request)

    def settle(self, step_id: int) -> None:
        """Record that all steps up to ``step_id`` are over, and release the blocks that waited for them."""
        self._over, self._assumed = step_id, None
        leaving, self.leaving = self.leaving, []
        for request in leaving:
            self.end(request)


def put_token(request: Request, token: int) -> None:
    """Store the token drawn for the request: in place of its placeholder if there is one, else at the end."""
    if request.token_ids[-1] == PLACEHOLDER:
        request.token_ids[-1] = token
    else:
        request.token_ids.append(token)


def drop_placeholder(request: Request) -> None:
    """Remove the request's placeholder, if it has one: no token will be drawn for it."""
    if request.token_ids[-1] == PLACEHOLDER:
        request.token_ids.pop()


def is_last(request: Request) -> bool:
    """Returns whether the request is live and the next token drawn for it reaches its ``max_new_tokens``."""
    return (
        request.status is not RequestStatus.FINISHED
        and request.num_output_tokens + 1 >= request.sampling.max_new_tokens
    )


def will_end(request: Request) -> bool:
    """Returns whether the request ends, at the latest, with the token that its placeholder stands for."""
    return request.token_ids[-1] == PLACEHOLDER and request.num_output_tokens >= request.sampling.max_new_tokens


def computing(steps: Iterable[Step]) -> tuple[list[Request], list[StepEntry]]:
    """Returns the live requests that ``steps`` compute something for, and the entries of those that depend on others.

    A request that draws from saved logits counts among the first: it depends on no other request, so if its step fails,
    it would fail again each time it is retried.
    """
    live = [entry for step in steps for entry in step.entries if entry.request.status is not RequestStatus.FINISHED]
    requests = {
        entry.request.request_id: entry.request for entry in live if entry.num_tokens or entry.logits_key is not None
    }
    leaning = {entry.request.request_id: entry for entry in live if entry.request.request_id not in requests}
    return list(requests.values()), list(leaning.values())
