"""Continuous batching: keeps all live requests, makes steps of them, and applies the result of each step.

A step is pure data: the scheduler knows neither model nor clock, so every rule here can be tested without them.
Its design (no prefill or decode phase, a budget over prompt chunks, preemption by recomputation) is that of vLLM's V1
scheduler. ``StepBuilder`` decides what each request computes, in the order of first admissions, which is that of arrival
unless a policy (``core/waiting_queue.py``) says otherwise: so are first tokens drawn, and the last is preempted first.
"""

from __future__ import annotations

from roseplay.config import Knobs
from roseplay.core.ahead import StepsInFlight, computing, drop_placeholder, is_last, put_token
from roseplay.core.block_pool import BlockPool
from roseplay.core.block_tables import BlockTables
from roseplay.core.budget import UNLIMITED, check_fits
from roseplay.core.cache_events import CacheLog
from roseplay.core.host_blocks import HostBlocks
from roseplay.core.live_requests import LiveRequests
from roseplay.core.memory_limit import MemoryLimit
from roseplay.core.prefix_cache import PrefixCache
from roseplay.core.prompt_lookup import accepted
from roseplay.core.request import FinishReason, Request, RequestStatus
from roseplay.core.state_slots import StateSlots
from roseplay.core.state_snapshots import StateSnapshots
from roseplay.core.step import Step, StepEntry, StepResult
from roseplay.core.step_builder import StepBuilder


class Scheduler:
    """Requests enter by ``add`` and leave by ``update``, ``end`` or ``fail``.

    Each step from ``schedule`` must be followed by ``update`` (it succeeded), ``shrink`` (the device had no memory for
    it) or ``fail``. After ``assume``, the next step may be scheduled before that.

    Args:
        num_blocks: number of KV blocks, including block 0.
        block_size: tokens per block.
        max_model_len: longest prompt plus answer, in tokens.
        max_saved_logits: number of finished prompts whose logits are kept for exact repeats.
        knobs: initial knobs; ``set_knobs`` replaces them between steps.
        token_limit: most tokens in a step that the device has memory for, whatever the knobs say; None is unlimited.
            ``shrink`` lowers it for a while.
        step_limit: most tokens in a step that ends in reasonable time; acts like a lower ``step_max_tokens`` knob, so a
            prompt that is computed whole may exceed it. May be replaced between steps.
        num_state_slots: most requests of a model with recurrent layers that can run at once; 0 for other models.
        num_state_snapshots: most states of such a model that the prefix cache keeps; 0 turns its prefix cache off.
        num_host_blocks: blocks in host memory for preempted requests, see ``HostBlocks``.
        state_interval: blocks of a prompt between two kept states, see ``StateSnapshots``.
        cache_log: records what enters and leaves the prefix cache.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        max_saved_logits: int,
        knobs: Knobs | None = None,
        token_limit: int | None = None,
        step_limit: int | None = None,
        num_state_slots: int = 0,
        num_state_snapshots: int = 0,
        num_host_blocks: int = 0,
        state_interval: int = 0,
        cache_log: CacheLog | None = None,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        states = StateSnapshots(num_state_slots, num_state_snapshots, state_interval * block_size, block_size)
        self.cache = PrefixCache(self.pool, max_saved_logits, cache_log, states)
        self.slots = StateSlots(num_state_slots)
        self.tables = BlockTables(self.pool, self.cache, self.slots)
        self.host = HostBlocks(self.tables, num_host_blocks)
        self.block_size = block_size
        self.max_model_len = max_model_len
        self._without_cache = self.slots.used and not states.used  # cached blocks are useless without a state
        self.knobs = knobs or Knobs()
        self.set_knobs(self.knobs)
        self.step_limit = step_limit
        self.token_cost = 0.0  # see ``least_likely``; may be replaced between steps
        self.in_flight = StepsInFlight(self.tables.release)
        self.next_step_id = 0
        self._memory_limit = MemoryLimit(token_limit)
        self.live = LiveRequests()
        self.requests, self.running, self.waiting = self.live.by_id, self.live.running, self.live.waiting
        self._errors: list[tuple[Request, str]] = []

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    # -- requests and settings

    def check_fits(self, num_prompt_tokens: int, max_new_tokens: int) -> None:
        """Raises ``RequestTooLargeError`` for a request that could never be served."""
        check_fits(num_prompt_tokens, max_new_tokens, self.max_model_len, self.pool.num_usable, self.block_size)

    def add(self, request: Request) -> None:
        """Enqueue a request. Raises ``RequestTooLargeError``, or ``ValueError`` if another live request has its id."""
        self.check_fits(request.num_prompt_tokens, request.sampling.max_new_tokens)
        self.live.add(request)

    def end(self, request_id: int, reason: FinishReason) -> Request | None:
        """End a live request, release its blocks and return it; returns None if no live request has this id."""
        if (request := self.requests.get(request_id)) is not None:
            self._finish(request, reason)
        return request

    def set_knobs(self, knobs: Knobs) -> None:
        """Replace the knobs, from the next step on."""
        if self.knobs.prefix_cache and not knobs.prefix_cache:
            self.cache.clear()
        self.pool.set_eviction(knobs.eviction_policy, knobs.pinned_blocks)
        self.knobs = knobs
        self._acting = knobs
        if self._without_cache:
            self._acting = knobs.changed({"prefix_cache": False, "same_step_sharing": False})

    def clear_cache(self) -> None:
        """Empty the prefix cache; requests keep the blocks that they hold."""
        self.cache.clear()

    @property
    def token_limit(self) -> int | None:
        """Most tokens in a step that the device is believed to have memory for; None is unlimited."""
        return self._memory_limit.most

    @token_limit.setter
    def token_limit(self, most: int | None) -> None:
        self._memory_limit = MemoryLimit(most)

    # -- a step begins

    def schedule(self) -> Step:
        """Returns the next step; it has no entries if there is nothing to do."""
        knobs = self._acting
        step = Step(self.next_step_id, batched_append=knobs.batched_append, cuda_graphs=knobs.cuda_graphs)
        self.tables.step_id = self.cache.step_id = step.step_id
        self.next_step_id += 1
        step.dropped_logits = self.cache.take_dropped_logits()
        max_tokens = min(knobs.step_max_tokens or UNLIMITED, self.step_limit or UNLIMITED)
        builder = StepBuilder(
            step, self.live, self.tables, self.host, knobs, max_tokens=max_tokens, device_limit=self.token_limit
        )
        builder.build()
        if knobs.speculative_tokens and not self.slots.used:
            builder.add_drafts(self.token_cost)
        return step

    def can_run_ahead(self, step: Step) -> bool:
        """Returns whether the next step can be scheduled while ``step`` runs: it has work, and preempts no request."""
        if step.draft_tokens or self.knobs.speculative_tokens:  # the next step depends on what ``step`` draws
            return False
        ending = sum(1 for entry in step.entries if entry.samples and is_last(entry.request))
        admits = self.waiting and len(self.running) < self.knobs.max_batch_size and not self.slots.exhausted
        return bool(len(self.running) > ending or admits) and len(self.running) <= self.pool.num_available

    def assume(self, step: Step) -> None:
        """Assume that ``step``, which still runs, succeeds, so that the next one can be scheduled."""
        self.cache.commit(keep=self.knobs.prefix_cache)
        self.in_flight.assume(step)

    # -- a step has ended

    def update(self, step: Step, result: StepResult) -> list[tuple[StepEntry, int]]:
        """Apply the result of a step that succeeded; returns its new tokens as (entry, token id), in the step's order.

        Requests that are finished by their token end here, and so do requests for which the result has an error; those
        are returned by ``take_errors``. Raises ``ValueError`` for a result that does not fit the step.
        """
        if len(result.token_ids) != len(step.entries):
            raise ValueError(f"the step has {len(step.entries)} entries, its result {len(result.token_ids)}")
        if not self.in_flight.is_assumed(step):
            self.cache.commit(keep=self.knobs.prefix_cache)
        self.cache.confirm()
        for index in result.errors:  # also for requests that have ended since: settle releases their blocks
            failed = step.entries[index].request
            self.host.forget_copies(failed.block_table)
            self.tables.forget(failed)
        self.in_flight.settle(step.step_id)
        self._memory_limit.passed(step.prompt_tokens + step.decode_tokens)
        for index, positions in step.prompt_logprobs.items():
            if len(result.prompt_logprobs.get(index, ())) != len(positions):
                raise ValueError(f"the step's result lacks log-probabilities of {step.entries[index].request}'s prompt")
            step.entries[index].request.num_prompt_logprobs += len(positions)
        new_tokens = []
        for index, (entry, token) in enumerate(zip(step.entries, result.token_ids, strict=True)):
            request = entry.request
            if request.status is RequestStatus.FINISHED:
                continue  # it ended while the step ran: its token is dropped
            if index in result.errors:
                self._errors.append((request, result.errors[index]))
                self._finish(request, FinishReason.ERROR)
                continue
            if not entry.samples:
                continue
            if token is None:
                raise ValueError(f"the step's result has no token for request {request.request_id}")
            drawn = [token, *(after for after, _ in result.after_draft.get(index, ()))]
            for count, token in enumerate(accepted(entry.draft, drawn) if entry.draft else drawn):
                if request.finish_reason is not None:
                    break
                request.num_computed_tokens += count > 0  # the token before, of the draft, was right
                step.accepted_tokens += count > 0
                new_tokens.append((entry, token))
                self._append_token(request, token, late=count > 0 or self.in_flight.is_writing_for(request))
        if step.accepted_tokens:  # the blocks that these fill became findable only now
            self.cache.commit(keep=self.knobs.prefix_cache)
            self.cache.confirm()
        return new_tokens

    def _append_token(self, request: Request, token: int, *, late: bool) -> None:
        put_token(request, token)
        if late and self._acting.prefix_cache and request.num_computed_tokens % self.block_size == 0:
            self.tables.publish_blocks(request, request.last_step, keep=True)  # it had to wait for this token
            self.tables.name_state(request)
        if token in request.eos_token_ids:
            self._finish(request, FinishReason.STOP)
        elif request.num_output_tokens >= request.sampling.max_new_tokens:
            self._finish(request, FinishReason.LENGTH)

    def take_errors(self) -> list[tuple[Request, str]]:
        """Returns the requests that a step's result had an error for since the last call, with the messages."""
        errors, self._errors = self._errors, []
        return errors

    def fail(self, *steps: Step) -> list[Request]:
        """End and return the requests that computed something in ``steps``, which are all in flight and have failed.

        Requests that only shared what others computed there go back to the queue.
        """
        self.cache.roll_back()
        self.host.forget(steps)
        self.in_flight.settle(steps[-1].step_id)
        ended, dependent = computing(steps)
        for request in ended:
            self._finish(request, FinishReason.ERROR)
        for entry in dependent:
            if entry.request.status is RequestStatus.RUNNING:  # it may be back in the queue already
                self._restart(entry.request)
        return ended

    def shrink(self, step: Step) -> bool:
        """Undo ``step``, which the device had no memory for, and schedule at most half as many tokens for a while.

        Requests that computed prompt tokens start again. Those that decoded keep their blocks, unless they have a
        recurrent state, which the step may have changed. Returns False, having done nothing, for a step of one token.
        """
        tokens = step.prompt_tokens + step.decode_tokens
        if tokens <= 1:
            return False
        self._memory_limit.failed(tokens)
        self.cache.roll_back()
        self.host.forget([step])
        self.in_flight.settle(step.step_id)
        for entry in step.entries:
            request = entry.request
            if request.status is not RequestStatus.RUNNING:
                continue
            decoded = entry.num_tokens and not entry.num_prompt_tokens
            if not decoded or request.request_id in step.copied or self.slots.used:
                self._restart(request)
            else:
                self.tables.take_back(request, entry.start)
        return True

    def _restart(self, request: Request) -> None:
        """Release the request's blocks, which may not hold what they should, and move it back to the queue."""
        drop_placeholder(request)
        request.num_cached_tokens = request.num_shared_tokens = 0
        request.miss = None
        self.tables.release(request)
        self.live.requeue(request)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.finish_reason = reason
        drop_placeholder(request)
        self.host.drop(request)
        self.live.remove(request)
        self.in_flight.end(request)
