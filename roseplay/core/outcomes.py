"""What becomes of a step: taken for granted, over, failed, or too large for the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from roseplay.config import Knobs
from roseplay.core.ahead import StepsInFlight, computing, drop_placeholder, is_last, put_token
from roseplay.core.block_pool import BlockPool
from roseplay.core.block_tables import BlockTables
from roseplay.core.memory_limit import MemoryLimit
from roseplay.core.prefix_cache import PrefixCache
from roseplay.core.request import FinishReason, Request, RequestStatus
from roseplay.core.step import Step, StepEntry, StepResult


class StepOutcomes(ABC):
    """The scheduler's half that is told of steps; the other half makes them."""

    pool: BlockPool
    cache: PrefixCache
    tables: BlockTables
    block_size: int
    knobs: Knobs
    memory_limit: MemoryLimit
    in_flight: StepsInFlight
    errors: list[tuple[Request, str]]
    running: list[Request]
    waiting: deque[Request]

    @abstractmethod
    def _finish(self, request: Request, reason: FinishReason) -> None:
        """End a live request and give up its blocks."""

    @abstractmethod
    def _requeue(self, request: Request) -> None:
        """Back to the queue, before everybody who arrived later; its full blocks stay findable."""

    def can_run_ahead(self, step: Step) -> bool:
        """Whether the next step can be made while ``step`` runs: there is work for it, and nobody need be preempted."""
        ending = sum(1 for entry in step.entries if entry.samples and is_last(entry.request))
        goes_on = len(self.running) > ending or (self.waiting and len(self.running) < self.knobs.max_batch_size)
        return bool(goes_on) and len(self.running) <= self.pool.num_available

    def assume(self, step: Step) -> None:
        """Take for granted that ``step``, which still runs, succeeds, so that the next one can be scheduled."""
        self.cache.commit(keep=self.knobs.prefix_cache)
        self.in_flight.assume(step)

    def update(self, step: Step, result: StepResult) -> list[tuple[StepEntry, int]]:
        """Take the step's new tokens: (entry, token id) in request order, finished requests already released.

        Requests that the step has an error for end with it; ``take_errors`` names them.
        """
        if len(result.token_ids) != len(step.entries):
            raise ValueError(f"the step has {len(step.entries)} entries, its result {len(result.token_ids)}")
        if not self.in_flight.is_assumed(step):
            self.cache.commit(keep=self.knobs.prefix_cache)
        self.cache.confirm()
        for index in result.errors:  # of those too who ended meanwhile, while their blocks are still theirs
            self.tables.forget(step.entries[index].request)
        self.in_flight.settle(step.step_id)
        self.memory_limit.passed(step.prompt_tokens + step.decode_tokens)
        new_tokens = []
        for index, (entry, token) in enumerate(zip(step.entries, result.token_ids, strict=True)):
            request = entry.request
            if request.status is RequestStatus.FINISHED:
                continue  # who ended while the step ran gets no more
            if index in result.errors:
                self.errors.append((request, result.errors[index]))
                self._finish(request, FinishReason.ERROR)
                continue
            if not entry.samples:
                continue
            if token is None:
                raise ValueError(f"the step's result has no token for request {request.request_id}")
            put_token(request, token)
            new_tokens.append((entry, token))
            if token in request.eos_token_ids:
                self._finish(request, FinishReason.STOP)
            elif request.num_output_tokens >= request.sampling.max_new_tokens:
                self._finish(request, FinishReason.LENGTH)
            elif self.knobs.prefix_cache and self._fills_block(request) and self.in_flight.is_writing_for(request):
                self.tables.publish_blocks(request, request.last_step, keep=True)  # it had to wait for this token
        return new_tokens

    def take_errors(self) -> list[tuple[Request, str]]:
        """Requests that ended because a step had an error for them, and why, since the last call."""
        errors, self.errors = self.errors, []
        return errors

    def fail(self, *steps: Step) -> list[Request]:
        """These steps raised (all that are in flight): end who computed in them, requeue who leaned on what they compute."""
        self.cache.roll_back()
        self.in_flight.settle(steps[-1].step_id)
        ended, leaning = computing(steps)
        for request in ended:
            self._finish(request, FinishReason.ERROR)
        for entry in leaning:
            if entry.request.status is RequestStatus.RUNNING:  # else the step before has failed too, and it is requeued
                self._take_back(entry.request)
        return ended

    def shrink(self, step: Step) -> bool:
        """The device had no memory for ``step``: undo it and take half as many tokens a step for a while.

        Who computed prompt tokens starts again, who decoded keeps its blocks. False, and nothing done, when the step
        cannot be smaller.
        """
        tokens = step.prompt_tokens + step.decode_tokens
        if tokens <= 1:
            return False
        self.memory_limit.failed(tokens)
        self.cache.roll_back()
        self.in_flight.settle(step.step_id)
        for entry in step.entries:
            request = entry.request
            if request.status is not RequestStatus.RUNNING:
                continue
            if not entry.num_tokens or entry.num_prompt_tokens or request.request_id in step.copied:
                self._take_back(request)
            else:
                self.tables.take_back(request, entry.start)
        return True

    def _take_back(self, request: Request) -> None:
        """What the request holds may not be there: it starts again."""
        drop_placeholder(request)
        request.num_cached_tokens = request.num_shared_tokens = 0
        self._requeue(request)

    def _fills_block(self, request: Request) -> bool:
        return request.num_computed_tokens % self.block_size == 0
