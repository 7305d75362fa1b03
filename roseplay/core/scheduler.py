"""Who computes what in the next step.

Running requests go first, one token each; then prompts, first come first served, within the budgets. A step is pure
data: the scheduler neither knows the model nor the clock, so every rule here is tested without either. The shape of
it (no prefill or decode phase, a budget over prompt chunks, preemption by recompute) is that of vLLM's v1 scheduler.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter

from roseplay.config import Knobs
from roseplay.core.ahead import StepsInFlight, drop_placeholder, will_end
from roseplay.core.block_pool import BlockPool, OutOfBlocksError
from roseplay.core.block_tables import BlockTables, Match
from roseplay.core.budget import UNLIMITED, PromptBudget, check_fits
from roseplay.core.memory_limit import MemoryLimit
from roseplay.core.outcomes import StepOutcomes
from roseplay.core.prefix_cache import Lookup, PrefixCache
from roseplay.core.request import FinishReason, Request, RequestStatus
from roseplay.core.step import Step, StepEntry

_by_arrival = attrgetter("arrival")


class Scheduler(StepOutcomes):
    """Holds all live requests, and turns them into steps; what becomes of these is told by ``StepOutcomes``.

    Args:
        num_blocks: KV blocks, block 0 included.
        block_size: tokens a block holds.
        max_model_len: longest prompt plus answer, in tokens.
        max_saved_logits: finished prompts whose logits are kept for exact repeats.
        knobs: may be replaced between steps by ``set_knobs``.
        token_limit: most tokens of a step that the device has memory for, whatever the knobs say; None is unlimited.
            ``shrink`` lowers it for a while.
        step_limit: most tokens of a step that ends in good time; acts like a lower knob ``step_max_tokens``, so that a
            prompt computed whole may exceed it. May be replaced between steps.
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
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.cache = PrefixCache(self.pool, max_saved_logits)
        self.tables = BlockTables(self.pool, self.cache)
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.knobs = knobs or Knobs()
        self.memory_limit = MemoryLimit(token_limit)
        self.step_limit = step_limit
        self.requests: dict[int, Request] = {}
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.in_flight = StepsInFlight(self.tables.release)
        self.errors: list[tuple[Request, str]] = []
        self.next_step_id = 0
        self._next_arrival = 0

    # -- requests come and go

    def check_fits(self, num_prompt_tokens: int, max_new_tokens: int) -> None:
        """Raises ``RequestTooLargeError`` for a request that could never be served."""
        check_fits(num_prompt_tokens, max_new_tokens, self.max_model_len, self.pool.num_usable, self.block_size)

    def add(self, request: Request) -> None:
        """Enqueue a request.

        Raises:
            RequestTooLargeError: it can never fit.
            ValueError: its id is that of a live request.
        """
        if request.request_id in self.requests:
            raise ValueError(f"request id {request.request_id} is in use")
        self.check_fits(request.num_prompt_tokens, request.sampling.max_new_tokens)
        request.arrival = self._next_arrival
        self._next_arrival += 1
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def end(self, request_id: int, reason: FinishReason) -> Request | None:
        """End a live request and give up its blocks; None when there is none (any more)."""
        request = self.requests.get(request_id)
        if request is not None:
            self._finish(request, reason)
        return request

    def set_knobs(self, knobs: Knobs) -> None:
        """Act on new knobs from the next step on."""
        if self.knobs.prefix_cache and not knobs.prefix_cache:
            self.cache.clear()
        self.knobs = knobs

    def clear_cache(self) -> None:
        """Forget all cached prompts; requests keep the blocks they hold."""
        self.cache.clear()

    @property
    def token_limit(self) -> int | None:
        """Most tokens of a step that the device has memory for, as far as is known; None is unlimited."""
        return self.memory_limit.most

    @token_limit.setter
    def token_limit(self, most: int | None) -> None:
        self.memory_limit = MemoryLimit(most)

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    @property
    def _step_max_tokens(self) -> int:
        return min(self.knobs.step_max_tokens or UNLIMITED, self.step_limit or UNLIMITED)

    # -- a step

    def schedule(self) -> Step:
        """The next step; it has no entries when there is nothing to do."""
        knobs = self.knobs
        step = Step(self.next_step_id, batched_append=knobs.batched_append, cuda_graphs=knobs.cuda_graphs)
        self.tables.step_id = step.step_id
        self.next_step_id += 1
        step.dropped_logits = self.cache.take_dropped_logits()
        num_decodes = self._schedule_decodes(step)
        self._schedule_prompts(step, num_decodes)
        return step

    # -- decodes

    def _schedule_decodes(self, step: Step) -> int:
        decodes = [request for request in self.running if not request.is_prefilling and not will_end(request)]
        limit = min(self._step_max_tokens, self.token_limit or UNLIMITED)
        if len(decodes) > limit:
            decodes.sort(key=attrgetter("last_step"))  # nobody starves: who waited longest goes
            decodes = sorted(decodes[:limit], key=_by_arrival)
        scheduled = 0
        for request in decodes:
            if request.status is RequestStatus.RUNNING and self._find_room(request, step):
                self._add_decode(step, request)
                scheduled += 1
        step.decode_tokens = scheduled
        return scheduled

    def _find_room(self, request: Request, step: Step) -> bool:
        """Room for the request's next token, by preempting others if need be; False when it has to wait itself."""
        if self.tables.is_writable(request, request.num_computed_tokens):
            return True
        while not self._make_room(step, request, 1):
            victim = self._choose_victim(step)
            self._preempt(victim, step)
            if victim is request:
                return False
        return True

    def _choose_victim(self, step: Step) -> Request:
        """The newest running request that is not in this step; never the oldest, which finds room when it runs alone."""
        return next(request for request in reversed(self.running) if request.last_step != step.step_id)

    def _preempt(self, request: Request, step: Step) -> None:
        request.num_preemptions += 1
        step.preempted.append(request.request_id)
        self._requeue(request)

    def _requeue(self, request: Request) -> None:
        """Back to the queue, before everybody who arrived later; its full blocks stay findable."""
        self.tables.release(request)
        self.running.remove(request)
        request.status = RequestStatus.WAITING
        request.prefill_end = request.num_tokens
        index = 0
        while index < len(self.waiting) and self.waiting[index].arrival < request.arrival:
            index += 1
        self.waiting.insert(index, request)

    def _add_decode(self, step: Step, request: Request) -> None:
        """The request computes its last token: what ``_add_entry`` does for any, in a path that every token takes."""
        start = request.num_computed_tokens
        request.num_computed_tokens = start + 1
        request.last_step = step.step_id
        step.entries.append(StepEntry(request, start, 1, samples=True, logits_entry=len(step.entries)))
        if self.knobs.prefix_cache and self._fills_block(request):
            self.tables.publish_blocks(request, step.step_id, keep=True)

    # -- prompts

    def _schedule_prompts(self, step: Step, num_decodes: int) -> None:
        knobs = self.knobs
        prompts = PromptBudget(knobs, self._step_max_tokens, self.token_limit, self.block_size, num_decodes)
        lookup = Lookup(step.step_id, committed=knobs.prefix_cache, pending=knobs.same_step_sharing)
        prefilling = [request for request in self.running if request.is_prefilling]
        for request in prefilling:
            self._attach(step, request, self._match(request, lookup))
            self._compute_prompt(step, request, prompts)
        if prefilling and prefilling[0].last_step != step.step_id:
            return  # the oldest got nothing: whoever joined now would take the budget that it waits for
        while self.waiting and len(self.running) < knobs.max_batch_size:
            request = self.waiting[0]
            match = self._match(request, lookup)
            if not self._may_admit(request, match, prompts):
                break
            self.waiting.popleft()
            self._admit(step, request)
            self._attach(step, request, match)
            self._compute_prompt(step, request, prompts)

    def _match(self, request: Request, lookup: Lookup) -> Match | None:
        return self.tables.match(request, lookup) if lookup.committed or lookup.pending else None

    def _may_admit(self, request: Request, match: Match | None, prompts: PromptBudget) -> bool:
        """Whether the head of the queue gets in: it has work it may do, and its whole prompt fits beside the others."""
        end = match.end if match is not None else 0
        if end == 0 and prompts.chunk(0, request.num_tokens) == 0:
            return False
        held = sum(1 for block in match.blocks if self.pool.ref_counts[block] > 0) if match is not None else 0
        needed = self.tables.blocks_for(request.num_tokens) - held
        reserved = sum(
            self.tables.blocks_for(other.prefill_end) - len(other.block_table)
            for other in self.running
            if other.is_prefilling
        )
        return needed + reserved + len(self.running) <= self.pool.num_available

    def _admit(self, step: Step, request: Request) -> None:
        request.status = RequestStatus.RUNNING
        request.prefill_end = request.num_tokens
        insort(self.running, request, key=_by_arrival)
        step.admitted.append(request.request_id)

    def _attach(self, step: Step, request: Request, match: Match | None) -> None:
        """Attach what was found; with the whole prompt found, take its logits from where they are."""
        if match is None:
            return
        cached, shared = self.tables.attach(request, match)
        entry = StepEntry(request, request.num_computed_tokens, 0)
        if match.end == request.prefill_end:
            tail = match.tail
            if tail is not None and tail.entry_index is not None and self.knobs.same_step_sharing:
                entry.logits_entry = tail.entry_index
            elif tail is not None and tail.entry_index is None and tail.logits_key is not None:
                entry.logits_key = tail.logits_key
            entry.samples = entry.logits_entry is not None or entry.logits_key is not None
        if entry.samples:
            request.last_step = step.step_id
        elif match.end == request.prefill_end:  # the logits are gone: the last prompt token is computed again
            request.num_computed_tokens = entry.start = match.end - 1
            cached, shared = (cached - 1, shared) if cached else (0, shared - 1)
        if request.num_preemptions == 0:  # a hit rate counts each prompt token once
            request.num_cached_tokens += cached
            request.num_shared_tokens += shared
            step.cached_tokens += cached
            step.shared_tokens += shared
        step.entries.append(entry)

    def _compute_prompt(self, step: Step, request: Request, prompts: PromptBudget) -> None:
        """Compute as much of the request's prompt as budgets and blocks allow, perhaps nothing."""
        start = request.num_computed_tokens
        chunk = prompts.chunk(start, request.num_tokens)
        if chunk == 0:
            return
        room = len(request.block_table) * self.block_size
        free_end = room + self.pool.num_available * self.block_size
        if free_end < start + chunk:
            chunk = max(0, free_end - start) if self.knobs.chunked_prefill else 0
        if chunk == 0 or not self._make_room(step, request, chunk):
            return
        prompts.spend(chunk, request.num_tokens - start)
        if step.entries and step.entries[-1].request is request:
            step.entries.pop()  # what it attached goes with what it computes
        self._add_entry(step, request, chunk)

    # -- both

    def _make_room(self, step: Step, request: Request, num_tokens: int) -> bool:
        """Blocks for the request's next tokens, its own to write into; False when too few are free."""
        start = request.num_computed_tokens
        in_held_block = start < len(request.block_table) * self.block_size
        if not self.tables.grow(request, start + num_tokens):
            return False
        if not in_held_block:
            return True
        try:
            copy = self.tables.make_writable(request, start, same_content=request.is_prefilling)
        except OutOfBlocksError:
            return False
        if copy is not None:
            step.copies.append(copy)
            step.copied.append(request.request_id)
        return True

    def _add_entry(self, step: Step, request: Request, num_tokens: int) -> None:
        """The request computes its next ``num_tokens`` prompt tokens; they count as computed from here on."""
        start = request.num_computed_tokens
        entry = StepEntry(request, start, num_tokens, num_tokens)
        request.num_computed_tokens = start + num_tokens
        request.last_step = step.step_id
        step.prompt_tokens += num_tokens
        index = len(step.entries)
        step.entries.append(entry)
        keep, share = self.knobs.prefix_cache, self.knobs.same_step_sharing
        if keep or share:
            self.tables.publish_blocks(request, step.step_id, keep)
        if request.num_computed_tokens == request.num_tokens:
            entry.samples, entry.logits_entry = True, index
            if request.num_tokens == request.num_prompt_tokens and (keep or share):
                entry.save_logits_key = self.tables.publish_tail(request, step.step_id, index, keep)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.finish_reason = reason
        drop_placeholder(request)
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        self.in_flight.end(request)
        del self.requests[request.request_id]
