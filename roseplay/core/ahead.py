"""Scheduling one step ahead: step n + 1 is made while step n still runs, so nobody knows step n's tokens yet.

Each token that step n will draw stands in its request's ``token_ids`` as a ``PLACEHOLDER`` until it is known; the model
runner puts the drawn token in its place on the device. Nothing is found by its tokens before they are known, and who
ends while a step still writes into their blocks keeps these until that step is over. The idea of placeholders is that
of vLLM's asynchronous scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from roseplay.core.request import PLACEHOLDER, Request, RequestStatus
from roseplay.core.step import Step, StepEntry


class StepsInFlight:
    """Which steps are over, whose tokens are taken for granted, and who left while a step was writing for them.

    Args:
        release: gives up a request's blocks.
    """

    def __init__(self, release: Callable[[Request], None]) -> None:
        self._release = release
        self._over = -1  # the last step whose outcome is known
        self._assumed: Step | None = None
        self.leaving: list[Request] = []

    def is_writing_for(self, request: Request) -> bool:
        """Whether a step whose outcome is unknown computes something for the request."""
        return request.last_step > self._over

    def assume(self, step: Step) -> None:
        """Give each request that samples in ``step`` a placeholder for its token."""
        self._assumed = step
        for entry in step.entries:
            if entry.samples and entry.request.status is RequestStatus.RUNNING:
                entry.request.token_ids.append(PLACEHOLDER)

    def is_assumed(self, step: Step) -> bool:
        """Whether ``step`` was taken for granted while it ran."""
        return self._assumed is step

    def end(self, request: Request) -> None:
        """Give up an ended request's blocks, once nobody writes there any more."""
        if self.is_writing_for(request):
            self.leaving.append(request)
        else:
            self._release(request)

    def settle(self, step_id: int) -> None:
        """All steps up to ``step_id`` are over."""
        self._over, self._assumed = step_id, None
        leaving, self.leaving = self.leaving, []
        for request in leaving:
            self.end(request)


def put_token(request: Request, token: int) -> None:
    """The token drawn for the request is known: in its placeholder's place, or at the end."""
    if request.token_ids[-1] == PLACEHOLDER:
        request.token_ids[-1] = token
    else:
        request.token_ids.append(token)


def drop_placeholder(request: Request) -> None:
    """The token that was taken for granted will not come."""
    if request.token_ids[-1] == PLACEHOLDER:
        request.token_ids.pop()


def is_last(request: Request) -> bool:
    """Whether the next token drawn for the live request is its last one."""
    return (
        request.status is not RequestStatus.FINISHED
        and request.num_output_tokens + 1 >= request.sampling.max_new_tokens
    )


def will_end(request: Request) -> bool:
    """Whether the request ends, at the latest, by the token that it waits for."""
    return request.token_ids[-1] == PLACEHOLDER and request.num_output_tokens >= request.sampling.max_new_tokens


def computing(steps: Iterable[Step]) -> tuple[list[Request], list[StepEntry]]:
    """The live requests that ``steps`` compute something for, and the entries of those that only lean on others.

    Who draws from saved logits counts among the first: nothing of others stands between it and a step that fails, and it
    would fail again and again.
    """
    live = [entry for step in steps for entry in step.entries if entry.request.status is not RequestStatus.FINISHED]
    found = {
        entry.request.request_id: entry.request for entry in live if entry.num_tokens or entry.logits_key is not None
    }
    leaning = {entry.request.request_id: entry for entry in live if entry.request.request_id not in found}
    return list(found.values()), list(leaning.values())
