"""Fills one step: first a token for each decoding request, then prompts in order of their turns, within the budgets."""

from __future__ import annotations

from roseplay.config import Knobs
from roseplay.core.ahead import will_end
from roseplay.core.block_pool import OutOfBlocksError
from roseplay.core.block_tables import BlockTables
from roseplay.core.budget import UNLIMITED, PromptBudget
from roseplay.core.cache_entries import Lookup, Match
from roseplay.core.host_blocks import HostBlocks
from roseplay.core.live_requests import LiveRequests
from roseplay.core.prompt_lookup import PromptLookup, least_likely
from roseplay.core.request import Request, RequestStatus
from roseplay.core.step import Step, StepEntry
from roseplay.core.waiting_queue import by_turn


class StepBuilder:
    """Builds one step, and updates the block tables of its requests.

    Args:
        step: an empty step, to be filled.
        max_tokens: most tokens as limited by knobs and speed; a prompt that is computed whole may exceed this.
        device_limit: most tokens that the device has memory for; None is unlimited.
    """

    def __init__(
        self,
        step: Step,
        requests: LiveRequests,
        tables: BlockTables,
        host: HostBlocks,
        knobs: Knobs,
        *,
        max_tokens: int,
        device_limit: int | None,
    ) -> None:
        self.step = step
        self._requests = requests
        self._tables = tables
        self._host = host
        self._pool = tables.pool
        self._knobs = knobs
        self._max_tokens = max_tokens
        self._device_limit = device_limit
        self._may_cut = knobs.chunked_prefill and (knobs.prefix_cache or knobs.same_step_sharing)

    def build(self) -> Step:
        """Fill the step and return it; it has no entries if there is nothing to do."""
        self._schedule_decodes()
        if not self._requests.defer_prompts(self.step, self._knobs.prefill_interval):
            self._schedule_prompts()
        if self.step.prompt_tokens:
            self._requests.num_decode_steps = 0
        elif self.step.decode_tokens:
            self._requests.num_decode_steps += 1
        return self.step

    # -- decodes

    def _schedule_decodes(self) -> None:
        decodes = [request for request in self._requests.running if not request.is_prefilling and not will_end(request)]
        limit = min(self._max_tokens, self._device_limit or UNLIMITED)
        if len(decodes) > limit:
            decodes.sort(key=lambda request: request.last_step)  # the longest waiting first, so that none starves
            decodes = sorted(decodes[:limit], key=by_turn)
        for request in decodes:
            if request.status is RequestStatus.RUNNING and self._find_room(request):
                self._add_decode(request)

    def _find_room(self, request: Request) -> bool:
        """Make room for the request's next token, preempting others if necessary; returns False if it was preempted."""
        if self._tables.is_writable(request, request.num_computed_tokens):
            return True
        while not self._make_room(request, 1):
            # The last admitted one that is not in this step; the first always fits when it runs alone.
            running = reversed(self._requests.running)
            victim = next(other for other in running if other.last_step != self.step.step_id)
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        """Move a request back to the queue; what it computed stays findable until its blocks are reused.

        If blocks are swapped and there is room in host memory, it is copied there.
        """
        request.num_preemptions += 1
        request.num_lost_tokens = max(request.num_lost_tokens, request.num_computed_tokens)
        if self._knobs.preemption_mode == "swap":
            self._host.swap_out(request, self.step)
        self.step.preempted.append(request.request_id)
        self._tables.release(request)
        self._requests.requeue(request)

    def _add_decode(self, request: Request) -> None:
        """Compute the request's last token: a shorter ``_add_chunk``, since every decoded token takes this path."""
        step, start = self.step, request.num_computed_tokens
        request.num_computed_tokens = start + 1
        request.last_step = step.step_id
        step.decode_tokens += 1
        step.entries.append(StepEntry(request, start, 1, samples=True, logits_entry=len(step.entries)))
        if self._knobs.prefix_cache and (start + 1) % self._pool.block_size == 0:
            self._tables.publish_blocks(request, step.step_id, keep=True)
            self._tables.keep_state(request, step)

    def add_drafts(self, token_cost: float) -> None:
        """Append drafts to the decodes of a built step, from the tokens and blocks that it has left.

        A block stays free for each running request, so that drafts preempt no request.
        """
        step, knobs, size = self.step, self._knobs, self._pool.block_size
        room = min(self._max_tokens, self._device_limit or UNLIMITED) - step.prompt_tokens - step.decode_tokens
        least = least_likely(token_cost, step.decode_tokens)
        for entry in step.entries:
            request = entry.request
            if not entry.num_tokens or entry.num_prompt_tokens:
                continue
            lookup = request.lookup
            if lookup is None or lookup.ngram != knobs.lookup_ngram:
                lookup = request.lookup = PromptLookup(knobs.lookup_ngram)
            lookup.read(request.token_ids)
            free = max(0, self._pool.num_available - len(self._requests.running))
            held = (len(request.block_table) + free) * size - request.num_tokens
            remaining = request.sampling.max_new_tokens - request.num_output_tokens - 1
            entry.draft = lookup.draft(request.token_ids, min(knobs.speculative_tokens, room, held, remaining), least)
            count = len(entry.draft)
            self._tables.grow(request, request.num_tokens + count)
            entry.num_tokens += count
            step.decode_tokens += count
            step.draft_tokens += count
            room -= count

    # -- prompts

    def _schedule_prompts(self) -> None:
        step, knobs, requests = self.step, self._knobs, self._requests
        budget = PromptBudget(
            knobs, self._max_tokens, self._device_limit, self._pool.block_size, num_decodes=step.decode_tokens
        )
        lookup = Lookup(step.step_id, committed=knobs.prefix_cache, pending=knobs.same_step_sharing)
        prefilling = [request for request in requests.running if request.is_prefilling]
        for request in prefilling:
            if self._attach(request, self._match(request, lookup)):
                self._compute_prompt(request, budget)
        if prefilling and prefilling[0].last_step != step.step_id:
            return  # the first prompt got no budget: a new request would take what it waits for
        requests.waiting.begin_step(knobs, requests.running, lambda request: self._match(request, lookup))
        while requests.waiting:
            if len(requests.running) >= knobs.max_batch_size or self._tables.slots.exhausted:
                step.held_by = "slots" if len(requests.running) < knobs.max_batch_size else "batch"
                break
            request = requests.waiting.head
            match = self._match(request, lookup)
            if obstacle := self._obstacle(request, match, budget):
                step.held_by = obstacle
                break
            requests.admit(request)
            self._tables.slots.take(request)
            step.admitted.append(request.request_id)
            if self._attach(request, match):
                self._host.swap_in(request, step)
                self._compute_prompt(request, budget)

    def _match(self, request: Request, lookup: Lookup) -> Match | None:
        if request.lacks_prompt_logprobs or not (lookup.committed or lookup.pending):
            return None
        return self._tables.match(request, lookup)

    def _obstacle(self, request: Request, match: Match | None, budget: PromptBudget) -> str | None:
        """Returns what keeps the request at the head of the queue from entering, as in ``Step.held_by``, or None.

        It may enter if there is work for it in this step, and if its whole prompt fits beside the running requests.
        """
        if match is None and budget.chunk(self._host.tokens_of(request), request.num_tokens) == 0:
            return "prefill"
        held = sum(1 for block in match.blocks if self._pool.ref_counts[block] > 0) if match is not None else 0
        needed = self._tables.blocks_for(request.num_tokens) - held
        running = self._requests.running
        reserved = sum(
            self._tables.blocks_for(other.prefill_end) - len(other.block_table)
            for other in running
            if other.is_prefilling
        )
        return None if needed + reserved + len(running) <= self._pool.num_available else "blocks"

    def _attach(self, request: Request, match: Match | None) -> bool:
        """Attach the matched blocks, and draw from existing logits if the whole prompt was found.

        Returns False if the request has to wait for a recurrent state that another request computes in this step.
        """
        if match is None:
            return True
        step = self.step
        cached, shared = self._tables.attach(request, match)
        entry = StepEntry(request, request.num_computed_tokens, 0)
        if match.end == request.prefill_end:
            tail = match.tail
            if tail is not None and tail.entry_index is not None and self._knobs.same_step_sharing:
                entry.logits_entry = tail.entry_index
            elif tail is not None and tail.entry_index is None and tail.logits_key is not None:
                entry.logits_key = tail.logits_key
            entry.samples = entry.logits_entry is not None or entry.logits_key is not None
        if entry.samples:
            request.last_step = step.step_id
        elif match.end == request.prefill_end:  # no logits: compute the last prompt token again
            request.num_computed_tokens = entry.start = match.end - 1
            cached -= 1  # its block was computed by an earlier step
        if request.num_preemptions == 0:  # the hit rate counts each prompt token once
            request.num_cached_tokens += cached
            request.num_shared_tokens += shared
            step.cached_tokens += cached
            step.shared_tokens += shared
        step.entries.append(entry)
        return match.state is None or self._tables.states.restore(match.state, request, step)

    def _compute_prompt(self, request: Request, budget: PromptBudget) -> None:
        """Compute as much of the request's prompt as budget and free blocks allow; this may be nothing."""
        start = request.num_computed_tokens
        chunk = budget.chunk(start, request.num_tokens)
        if start + chunk < request.num_tokens:
            self.step.held_by = "prefill"
        if chunk == 0:
            return
        free_end = (len(request.block_table) + self._pool.num_available) * self._pool.block_size
        if free_end < start + chunk:
            self.step.held_by = "blocks"
            chunk = max(0, free_end - start) if self._knobs.chunked_prefill else 0
        if chunk == 0:
            return
        wanted = request.num_tokens - start
        if self._may_cut:
            stop = self._tables.states.boundary(request, start, start + chunk)
            if stop < start + chunk:
                chunk = wanted = stop - start  # a cut that does not use up the budget
        miss = request.miss or self._tables.explain(request, committed=self._knobs.prefix_cache)  # before eviction
        if not self._make_room(request, chunk):
            return
        if request.miss is None:
            request.miss = miss
            self.step.misses.append((request.request_id, miss))
        budget.spend(chunk, wanted)
        if self.step.entries and self.step.entries[-1].request is request:
            self.step.entries.pop()  # replaced by the entry that computes
        self._add_chunk(request, chunk)

    def _add_chunk(self, request: Request, num_tokens: int) -> None:
        """Compute the request's next ``num_tokens`` prompt tokens, which count as computed from here on."""
        step, start = self.step, request.num_computed_tokens
        entry = StepEntry(request, start, num_tokens, num_tokens)
        request.num_computed_tokens = start + num_tokens
        request.last_step = step.step_id
        step.prompt_tokens += num_tokens
        step.recomputed_tokens += max(0, min(request.num_lost_tokens, start + num_tokens) - start)
        index = len(step.entries)
        step.entries.append(entry)
        if request.lacks_prompt_logprobs:
            first = max(start, request.num_prompt_logprobs) + 1  # it may have some from before a preemption
            if positions := range(first, min(start + num_tokens + 1, request.num_prompt_tokens)):
                step.prompt_logprobs[index] = positions
        keep, share = self._knobs.prefix_cache, self._knobs.same_step_sharing
        if keep or share:
            self._tables.publish_blocks(request, step.step_id, keep)
            self._tables.keep_state(request, step)
        if request.num_computed_tokens == request.num_tokens:
            entry.samples, entry.logits_entry = True, index
            if request.num_tokens == request.num_prompt_tokens and (keep or share):
                entry.save_logits_key = self._tables.publish_tail(request, step, index, keep)

    # -- decodes and prompts

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Give the request writable blocks for its next tokens; returns False if too few are free."""
        start = request.num_computed_tokens
        in_held_block = start < len(request.block_table) * self._pool.block_size
        if not self._tables.grow(request, start + num_tokens):
            return False
        if not in_held_block:
            return True
        try:
            copy = self._tables.make_writable(request, start, same_content=request.is_prefilling)
        except OutOfBlocksError:
            return False
        if copy is not None:
            self.step.copies.append(copy)
            self.step.copied.append(request.request_id)
        return True
