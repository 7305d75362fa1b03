"""What holds for a scheduler after any operation: blocks and references, queues, budgets, progress of each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter

from roseplay.core.cache_entries import COMMITTED, Node
from roseplay.core.cache_events import CacheEvent, Cleared, Removed, Stored
from roseplay.core.request import PLACEHOLDER, Request, RequestStatus
from roseplay.core.scheduler import Scheduler
from roseplay.core.state_slots import NOBODY
from roseplay.core.step import Step
from tests.core.device import NAN, UNWRITTEN, Device, Truth


class Invariants:
    """Checks a scheduler between any two operations.

    Args:
        live: what each live request must return, the oldest first.
    """

    def __init__(self, scheduler: Scheduler, device: Device, live: dict[int, Truth]) -> None:
        self.scheduler = scheduler
        self.device = device
        self.live = live
        self._block_states: dict[int, tuple[int, bool]] = {}
        self._slots: dict[int, int] = {}
        self._kept: dict[int, tuple[int, int]] = {}
        self._tree = CacheTree()
        self._progress: tuple[int, ...] = ()
        self._patience = 0
        self._turns = 0  # first admissions so far
        self._deferred = False  # whether the last step left prompts for later because of the prefill interval
        self._decode_steps = 1_000_000  # without prompts, since the last one that computed prompt tokens
        self._overtakes = Counter[int]()  # by request: later ones that were admitted before it

    def check(self, flying_blocks: set[int] | None, *, thorough: bool) -> None:
        """Check blocks, references and queues; with ``thorough``, also what is reported about each block.

        Args:
            flying_blocks: the blocks that a step in flight writes into; None without such a step.
        """
        scheduler, pool = self.scheduler, self.scheduler.pool
        assert list(scheduler.requests) == list(self.live)
        self._check_queues()
        if flying_blocks is None:
            assert not scheduler.in_flight.leaving, "blocks are held for a step that is over"
        holders = [*scheduler.requests.values(), *scheduler.in_flight.leaving]
        self._check_references(holders, flying_blocks or set())
        self._check_slots(holders)
        self._check_host_blocks()
        self._check_kept_states(has_flight=flying_blocks is not None)
        for block in pool.take_changed():
            self._block_states[block] = (pool.ref_counts[block], pool.is_findable(block))
        self._check_cache_events()
        if thorough:
            self._check_histories(has_flight=flying_blocks is not None)
            self._check_descriptions(holders)

    def _check_queues(self) -> None:
        running, waiting = self.scheduler.running, list(self.scheduler.waiting)
        returned = [request for request in waiting if request.turn >= 0]
        assert waiting[: len(returned)] == returned, "a request that was admitted before is behind others"
        for ordered in (running, returned):
            assert _increase([request.turn for request in ordered]), "not in order of first admission"
        assert _increase([request.arrival for request in waiting[len(returned) :]]), "not in order of arrival"
        for queue, status in ((running, RequestStatus.RUNNING), (waiting, RequestStatus.WAITING)):
            for request in queue:
                assert request.status is status
                assert request.request_id in self.live, "a request that has ended is still in a queue"
                if status is RequestStatus.WAITING:
                    assert not request.block_table
        assert len(running) + len(waiting) == len(self.live)

    def _check_references(self, holders: list[Request], flying_blocks: set[int]) -> None:
        """Every reference is an entry in a holder's block table, and every block is in exactly one state."""
        pool = self.scheduler.pool
        references = [0] * pool.num_blocks
        for request in holders:
            for block in request.block_table:
                references[block] += 1
        assert references == pool.ref_counts
        assert references[0] == 0
        assert all(references[block] for block in flying_blocks), "a step writes into a free block"
        shared = sum(1 for count in references if count > 1)
        unheld = [block for block in range(1, pool.num_blocks) if not references[block]]
        cached = sum(1 for block in unheld if pool.is_findable(block))
        counts = (pool.num_free, pool.num_cached, pool.num_active, pool.num_shared)
        assert counts == (len(unheld) - cached, cached, pool.num_usable - len(unheld) - shared, shared)
        assert sum(counts) == pool.num_usable
        pinned = [block for block in range(pool.num_blocks) if pool.is_pinned(block)]
        assert len(pinned) <= (pool.num_usable // 2 if self.scheduler.knobs.pinned_blocks else 0)
        assert all(pool.is_findable(block) for block in pinned), "a block is pinned that nothing can find"

    def _check_slots(self, holders: list[Request]) -> None:
        """A request that runs, or that a step in flight writes for, has its own state slot; no others have one."""
        slots, running = self.scheduler.slots, self.scheduler.running
        taken = [request.state_slot for request in holders if request.state_slot]
        assert len(set(taken)) == len(taken) == slots.num_slots - slots.num_free
        assert all(1 <= slot <= slots.num_slots for slot in taken)
        assert all(bool(request.state_slot) == slots.used for request in running)
        assert not any(request.state_slot for request in self.scheduler.waiting)
        self._slots.update(slots.take_changed())
        told = {slot: request_id for slot, request_id in self._slots.items() if request_id != NOBODY}
        assert told == {request.state_slot: request.request_id for request in holders if request.state_slot}

    def _check_host_blocks(self) -> None:
        """Only waiting requests have blocks in host memory, each its own, as many as its tokens there need."""
        host, waiting = self.scheduler.host, {request.request_id for request in self.scheduler.waiting}
        assert host.swapped.keys() <= waiting
        held = [block for swapped in host.swapped.values() for block in swapped.blocks]
        assert len(set(held)) == len(held) == host.num_blocks - host.num_free
        assert all(0 <= block < host.num_blocks for block in held)
        for number, swapped in host.swapped.items():
            assert swapped.num_tokens < self.live[number].request.num_tokens
            assert len(swapped.blocks) == -(-swapped.num_tokens // self.scheduler.block_size)

    def _check_kept_states(self, *, has_flight: bool) -> None:
        """Each kept state has its own slot, is found by its tokens, and is the state after exactly these tokens."""
        cache, states = self.scheduler.cache, self.scheduler.cache.states
        kept = states.kept
        dropped = [state.slot for state in states._pending if state not in kept]
        slots = sorted([state.slot for state in kept] + dropped + states._free)
        first = self.scheduler.slots.num_slots + 1
        assert slots == list(range(first, first + states.num_snapshots)), "a slot is lost or used twice"
        assert all(cache._nodes.get(state.key) or cache._tails.get(state.key) for state in kept)
        self._kept.update(states.take_changed())
        told = {slot: about for slot, about in self._kept.items() if about != (NOBODY, 0)}
        assert told == {state.slot: (state.request_id, len(_path(state.key[0])) + len(state.key[1])) for state in kept}
        for state in kept:
            found, own = self.device.states[state.slot], [*_path(state.key[0]), *state.key[1]]
            failing = has_flight and found == UNWRITTEN
            assert failing or found == NAN or self.device.histories.tokens(found) == own, "a state of other tokens"
            prompt = self.device.truths[state.request_id].request.num_prompt_tokens
            assert state.in_answer == (len(own) > prompt)
            assert not state.in_answer or len(own) % self.scheduler.block_size == 0
        in_answers = [state for state in {*kept, *states._pending} if state.in_answer]
        assert len(in_answers) == states._num_in_answers
        owners = [state.request_id for state in in_answers if state in kept]
        assert len(set(owners)) == len(owners), "an answer has two kept states"

    def _check_histories(self, *, has_flight: bool) -> None:
        for truth in self.live.values():
            request = truth.request
            known = request.num_known_tokens
            assert request.token_ids[:known] == truth.tokens[:known]
            assert has_flight or PLACEHOLDER not in request.token_ids

    def _check_cache_events(self) -> None:
        """The events so far, replayed, are the tree of the full blocks that the cache finds and whose steps succeeded.

        Each of these is found from the prompt's beginning: its parent is one of them, and came before it.
        """
        cache = self.scheduler.cache
        assert cache.log is not None
        assert {id(node) for node in cache._nodes.values()} == {id(node) for node in cache._node_of_block.values()}
        for event in cache.log.take():
            self._tree.apply(event)
        unproven = {id(node) for node in cache._unproven.nodes}
        hashes: dict[Node | None, int] = {None: 0}
        for node in cache._nodes.values():
            if node.pending_step == COMMITTED and id(node) not in unproven:
                assert node.parent in hashes, "a block is kept that cannot be found, since the cache dropped its parent"
                history = hashes[node] = hash((hashes[node.parent], node.tokens))
                parent = None if node.parent is None else hashes[node.parent]
                assert self._tree.stored.get(history) == (history, parent)
        assert len(self._tree.stored) == len(hashes) - 1, "an event tells of a block that the cache does not find"
        listed = {None, *cache._nodes.values()}
        assert all(tail.parent in listed for tail in cache._tails.values() if tail.pending_step == COMMITTED)

    def _check_descriptions(self, holders: list[Request]) -> None:
        """Check what is reported about blocks: who holds them, their content, and which have changed."""
        scheduler, size, tables = self.scheduler, self.scheduler.block_size, self.scheduler.tables
        for block in range(1, scheduler.pool.num_blocks):
            findable = scheduler.pool.is_findable(block)
            state = (scheduler.pool.ref_counts[block], findable)
            assert self._block_states.get(block, (0, False)) == state, f"block {block} changed without being reported"
            held_by = [request.request_id for request in holders if block in request.block_table]
            assert sorted(tables.holders(block)) == sorted(held_by)
            depth, tokens = tables.describe(block)
            if held_by:
                assert depth is not None
                truth = self.device.truths[tables.holders(block)[0]]
                end = min((depth + 1) * size, truth.request.num_computed_tokens, truth.request.num_known_tokens)
                assert truth.request.block_table[depth] == block
                assert list(tokens) == truth.tokens[depth * size : end]
                assert tables.last_use(block) == scheduler.next_step_id - 1
            elif findable:
                assert depth is not None
                self._check_content(block, depth, list(tokens))
            else:
                assert (depth, tokens) == (None, ())

    def _check_content(self, block: int, depth: int, tokens: list[int]) -> None:
        """A cached block holds the tokens under which it is found, at their position in the prompt."""
        slots = self.device.slots[block][: len(tokens)]
        if all(slot >= 0 for slot in slots):
            assert self.device.histories.tokens(slots[-1])[depth * self.device.block_size :] == tokens

    def check_step(self, step: Step, running: set[int]) -> None:
        """Check a step that has just been scheduled; ``running`` are the requests that ran before."""
        scheduler, knobs = self.scheduler, self.scheduler.knobs
        preempted, admitted = set(step.preempted), set(step.admitted)
        now_running = {request.request_id for request in scheduler.running}
        assert running - preempted | admitted == now_running
        assert len(admitted) == len(step.admitted)
        assert not (running - preempted) & admitted
        assert all(self.live[number].request.num_preemptions > 0 for number in preempted)
        if admitted:
            assert len(now_running) <= knobs.max_batch_size
            self._check_order(step)
        if step.decode_tokens and self._decode_steps < knobs.prefill_interval:
            assert not (step.prompt_tokens or step.admitted), "prompts came too soon after others"
        else:
            assert step.held_by != "interval", "prompts were deferred for too long"
        self._deferred = step.held_by == "interval"
        self._decode_steps = 0 if step.prompt_tokens else self._decode_steps + bool(step.decode_tokens)
        if scheduler.slots.used and not scheduler.cache.states.used:
            assert not step.cached_tokens, "blocks were attached where no state is kept"
            assert not step.shared_tokens, "blocks were attached where no state is kept"
        if step.held_by == "slots":
            assert scheduler.slots.exhausted
        assert (step.batched_append, step.cuda_graphs) == (knobs.batched_append, knobs.cuda_graphs)
        assert len(step.copied) == len(step.copies)
        assert not step.swapped_out or (step.preempted and knobs.preemption_mode == "swap")
        assert step.recomputed_tokens <= step.prompt_tokens
        assert len({entry.request.request_id for entry in step.entries}) == len(step.entries)
        for entry in step.entries:
            most = entry.request.num_prompt_tokens + entry.request.sampling.max_new_tokens
            assert entry.start + entry.num_tokens < most, "the last token is computed needlessly"
        self._check_budgets(step)

    def _check_order(self, step: Step) -> None:
        """Requests come in their policy's order; those admitted before come first, and nobody waits beyond the bound."""
        knobs, policy = self.scheduler.knobs, self.scheduler.knobs.scheduling_policy
        admitted = [self.live[number].request for number in step.admitted]
        waiting = list(self.scheduler.waiting)
        new = [request for request in admitted if request.turn >= self._turns]
        assert admitted[len(admitted) - len(new) :] == new, "a request that was admitted before comes behind a new one"
        if new:
            assert all(request.turn < 0 for request in waiting), "a request that was admitted before was passed over"
        self._turns += len(new)
        left = [*new, *waiting]
        for request in new:
            left.remove(request)
            older = [other for other in left if other.arrival < request.arrival]
            if policy == "fcfs":
                assert not older, "admitted out of order"
            elif policy != "fair" and knobs.max_overtakes is not None and older:
                oldest = min(older, key=_arrival)
                overtaken = self._overtakes[oldest.request_id]
                assert overtaken < knobs.max_overtakes, f"{request} overtook {oldest}, as {overtaken} others had"
            elif policy == "fair":
                assert not any(other.sampling.tenant == request.sampling.tenant for other in older)
            elif policy in _KEYS and knobs.max_overtakes is None:
                key = _KEYS[policy]
                assert all((key(request), request.arrival) < (key(other), other.arrival) for other in left)
            self._overtakes.update(other.request_id for other in older)

    def _check_budgets(self, step: Step) -> None:
        scheduler, knobs = self.scheduler, self.scheduler.knobs
        prompts = [entry.num_tokens for entry in step.entries if entry.num_prompt_tokens]
        assert step.prompt_tokens == sum(prompts) == sum(entry.num_prompt_tokens for entry in step.entries)
        total = sum(entry.num_tokens for entry in step.entries)
        assert step.decode_tokens == total - step.prompt_tokens
        assert step.draft_tokens == sum(len(entry.draft) for entry in step.entries)
        assert all(len(entry.draft) <= knobs.speculative_tokens for entry in step.entries)
        assert total <= (scheduler.token_limit or total)
        assert len(prompts) <= (knobs.prefill_max_batch_size or len(prompts))
        if knobs.chunked_prefill or len(prompts) > 1:  # otherwise a prompt over the budget is computed alone
            assert step.prompt_tokens <= (knobs.prefill_max_tokens or total)
            assert total <= (knobs.step_max_tokens or total)
            assert total <= (scheduler.step_limit or total)
        if knobs.chunked_prefill:
            assert max(prompts, default=0) <= (knobs.chunk_max_tokens or total)

    def watch_the_oldest(self) -> None:
        """The request that was admitted first advances within a bounded number of steps, so each is served eventually.

        Called after each step that succeeded. That request is never preempted; if none runs, one is admitted.
        While it waits for a place, blocks or budget, the other running requests finish or are preempted, and none joins
        them. Each computes at most the tokens that it lacks, at least one per step.
        """
        if not self.live:
            self._progress = ()
            return
        live = [truth.request for truth in self.live.values()]
        admitted = [request for request in live if request.turn >= 0]
        oldest = min(admitted, key=lambda request: request.turn) if admitted else live[0]
        advanced = (oldest.request_id, oldest.num_computed_tokens, oldest.num_known_tokens)
        progress = advanced if admitted else (self._turns,)
        if progress != self._progress:
            self._progress = progress
            self._patience = 4 + sum(
                1 + len(self.live[other.request_id].tokens) - min(other.num_computed_tokens, other.num_known_tokens)
                for other in self.scheduler.running
            )
        self._patience -= not self._deferred
        assert self._patience >= 0, f"{oldest} does not advance"


class CacheTree:
    """What a reader of cache events knows: a tree of blocks, of which no event may leave a part without its root.

    Attributes:
        stored: the blocks by hash.
    """

    def __init__(self) -> None:
        self.stored: dict[int, Stored] = {}
        self._children = Counter[int | None]()

    def apply(self, event: CacheEvent) -> None:
        match event:
            case Stored(block_hash, parent_hash):
                assert block_hash not in self.stored, "a block is stored twice"
                assert parent_hash is None or parent_hash in self.stored, "a block is stored behind one that is not"
                self.stored[block_hash] = event
                self._children[parent_hash] += 1
            case Removed(block_hash):
                assert not self._children[block_hash], "a block is removed before those behind it"
                self._children[self.stored.pop(block_hash).parent_hash] -= 1
            case Cleared():
                self.stored.clear()
                self._children.clear()


_arrival = attrgetter("arrival")
_KEYS: dict[str, Callable[[Request], int]] = {
    "shortest": lambda request: request.num_prompt_tokens,
    "priority": lambda request: request.sampling.priority,
}


def _increase(numbers: Sequence[int]) -> bool:
    return all(one < other for one, other in pairwise(numbers))


def _path(node: Node | None) -> list[int]:
    return [] if node is None else [*_path(node.parent), *node.tokens]
