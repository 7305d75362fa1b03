"""Runs of steps that only decode, applied at once: for simulations, in which the tokens are known in advance.

While nothing arrives, and no request that waits could enter, consecutive steps differ only in the blocks that requests
fill and take, and in the requests that end. A run changes requests, block tables and prefix cache as its steps would, in
the same order, without making the steps.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from roseplay.core.ahead import put_token
from roseplay.core.cache_entries import Lookup
from roseplay.core.request import PLACEHOLDER, FinishReason, Request
from roseplay.core.scheduler import Scheduler
from roseplay.core.step import Step


class Part(NamedTuple):
    """One request's part in a run: the position that its first step computes, and how many tokens it may still draw."""

    request: Request
    start: int
    remaining: int


class DecodeRun:
    """The steps that may follow a step without anything but decodes; made by ``DecodeRun.after``.

    Attributes:
        parts: all running requests, in order of their turns.
        most: number of steps that the run may have: at least one answer goes on after it, and none ends in its last
            step.
    """

    def __init__(self, scheduler: Scheduler, parts: list[Part], most: int, *, ahead: bool) -> None:
        self._scheduler = scheduler
        self._ahead = ahead
        self._ends = {part.remaining for part in parts}
        self.parts = parts
        self.most = self.without_end(most)

    @classmethod
    def after(cls, scheduler: Scheduler, last: Step, *, ahead: bool, through_ends: bool = True) -> DecodeRun | None:
        """Returns the run that may follow ``last``, whose result has been applied; None if there is none.

        Args:
            last: since it was scheduled, no request has ended if any waits.
            ahead: whether each step is scheduled while the one before it runs. The blocks of a request that ends are
                then released only after the next step has been scheduled.
            through_ends: whether the run may go on after an answer has ended.
        """
        running, waits = scheduler.running, bool(scheduler.waiting)
        if not running or scheduler.slots.used or scheduler.cache.log is not None:
            return None
        limits = (scheduler.knobs.step_max_tokens, scheduler.step_limit, scheduler.token_limit)
        if any(limit is not None and len(running) > limit for limit in limits):
            return None
        if waits and (last.held_by in (None, "interval") or last.admitted or last.preempted or last.prompt_tokens):
            return None  # the head of the queue may enter the next step
        if waits and scheduler.waiting.head_may_change(full=last.held_by == "batch"):
            return None
        parts = [part for request in running if (part := _part(scheduler, request)) is not None]
        may_enter = waits and last.held_by != "batch"  # no answer ends before the last step
        if len(parts) < len(running) or (may_enter and _may_extend_match(scheduler, parts)):
            return None
        remaining = [part.remaining for part in parts]
        spare = scheduler.pool.num_available - (len(running) if ahead else 0)
        most = _fitting(parts, (max if through_ends and not waits else min)(remaining) - 1, spare, scheduler.block_size)
        run = cls(scheduler, parts, most, ahead=ahead)
        return run if run.most > 0 else None

    def without_end(self, steps: int) -> int:
        """Returns the largest number of steps, at most ``steps``, in whose last step no answer ends."""
        while steps in self._ends:
            steps -= 1
        return steps

    def apply(
        self, steps: int, tokens: Callable[[Request, int], Sequence[int]], changed: Callable[[int], None] | None = None
    ) -> None:
        """Do what the next steps would.

        Args:
            steps: number of steps, from ``without_end`` and at most ``most``.
            tokens: returns the next tokens of a request, as many as asked for.
            changed: called with the index of each step in which blocks are taken or an answer ends, after that, and
                before each end as well: the most blocks are held then.
        """
        scheduler = self._scheduler
        first = scheduler.next_step_id
        tables, cache = scheduler.tables, scheduler.cache
        for part in self.parts:
            part.request.token_ids.extend(tokens(part.request, min(steps, part.remaining)))
        events = self._events(steps)
        for index in sorted(events):
            tables.step_id = cache.step_id = step_id = first + index
            for kind, (request, start, _) in events[index]:
                if kind == _GROW:
                    tables.grow(request, start + index + 1)
                elif kind == _RELIST:
                    if request.chain is not None and not request.chain.listed:
                        request.num_computed_tokens = start + index
                        tables.publish_blocks(request, step_id, keep=True)
                elif kind == _FILL:
                    request.num_computed_tokens = start + index + 1
                    tables.publish_blocks(request, step_id, keep=True)
                else:
                    if changed is not None:
                        changed(index)
                    cache.commit(keep=True)  # before its blocks can be taken
                    scheduler.end(request.request_id, FinishReason.LENGTH)
            if changed is not None:
                changed(index)
        cache.commit(keep=True)
        cache.confirm()
        tables.step_id = cache.step_id = last = first + steps - 1
        scheduler.next_step_id = last + 1
        scheduler.live.num_decode_steps += steps
        scheduler.in_flight.settle(last)
        for request, start, remaining in self.parts:
            if remaining > steps:
                request.num_computed_tokens = start + steps
                request.last_step = last

    def _events(self, steps: int) -> dict[int, list[tuple[int, Part]]]:
        """Returns what happens in which step besides decoding: blocks that are taken or filled, and answers that end.

        A step takes blocks for all requests when it is scheduled. Blocks that it fills become findable then, too. With
        overlap their last tokens are not known yet: then only those before them are listed again, if the cache has
        dropped them, and they become findable when the step before has ended.
        """
        grown: dict[int, list[tuple[int, Part]]] = defaultdict(list)
        later: dict[int, list[tuple[int, Part]]] = defaultdict(list)
        size, publishes = self._scheduler.block_size, self._scheduler.knobs.prefix_cache
        filled = later if self._ahead else grown
        relists = self._ahead and self._may_drop(len(self.parts) * (steps // size + 1))
        for part in self.parts:
            until = min(steps, part.remaining)
            held = len(part.request.block_table) * size
            for index in range(max(0, held - part.start), until, size):
                grown[index].append((_GROW, part))
            for index in range(size - 1 - part.start % size, until, size) if publishes else ():
                if relists:
                    grown[index].append((_RELIST, part))
                filled[index].append((_FILL, part))
            if part.remaining < steps:
                later[part.remaining - (not self._ahead)].append((_END, part))
        for index, events in later.items():
            grown[index] += events
        return grown

    def _may_drop(self, blocks: int) -> bool:
        """Returns whether the cache has dropped a block before one of a request, or may if ``blocks`` are taken."""
        chains = (part.request.chain for part in self.parts)
        return self._scheduler.pool.num_free < blocks or any(chain and not chain.listed for chain in chains)


@contextlib.contextmanager
def last_tokens_unknown(scheduler: Scheduler, requests: Iterable[Request]) -> Iterator[None]:
    """Schedule a step in the ``with`` block as if the one before it still ran, which draws these requests' last tokens.

    The blocks that they fill become findable afterwards, as when that step ends.
    """
    held = [(request, request.token_ids[-1]) for request in requests]
    for request, _ in held:
        request.token_ids[-1] = PLACEHOLDER
    yield
    for request, token in held:
        put_token(request, token)
        fills = request.num_computed_tokens % scheduler.block_size == 0
        if fills and scheduler.knobs.prefix_cache and scheduler.in_flight.is_writing_for(request):
            scheduler.tables.publish_blocks(request, request.last_step, keep=True)


_GROW, _RELIST, _FILL, _END = range(4)


def _part(scheduler: Scheduler, request: Request) -> Part | None:
    """Returns the request's part, or None if it does not just decode, or its last block has to be copied first."""
    start = request.num_computed_tokens
    if start + 1 != request.num_tokens or request.is_prefilling or request.eos_token_ids:
        return None
    if request.token_ids[-1] == PLACEHOLDER:
        return None
    index, offset = divmod(start, scheduler.block_size)
    if index < len(request.block_table):
        block = request.block_table[index]
        pool = scheduler.pool
        if pool.ref_counts[block] > 1 or (pool.is_findable(block) and scheduler.cache.covers(block, offset)):
            return None
    return Part(request, start, request.sampling.max_new_tokens - request.num_output_tokens)


def _fitting(parts: list[Part], most: int, blocks: int, block_size: int) -> int:
    """Returns how many steps, at most ``most``, need no more than ``blocks`` new blocks."""

    def needed(steps: int) -> int:
        ends = ((part, part.start + min(steps, part.remaining)) for part in parts)
        return sum(max(0, -(-end // block_size) - len(part.request.block_table)) for part, end in ends)

    if len(parts) * (most // block_size + 1) <= blocks:
        return most
    return bisect_right(range(1, most + 1), blocks, key=needed)


def _may_extend_match(scheduler: Scheduler, parts: list[Part]) -> bool:
    """Returns whether a block that a request fills, or lists again, may be what the head of the queue needs."""
    if not scheduler.knobs.prefix_cache:
        return False
    size, head = scheduler.block_size, scheduler.waiting.head
    match = scheduler.tables.match(head, Lookup(scheduler.next_step_id, committed=True, pending=False))
    node = match.nodes[-1] if match is not None and match.nodes else head.chain
    first = (match.first + len(match.nodes) if match is not None else head.num_chained_blocks) * size
    sought = head.token_ids[first : first + size]
    for request, _, _ in parts:
        if request.chain is node:
            begun = request.token_ids[request.num_chained_blocks * size :][:size]
            if begun == sought[: len(begun)]:
                return True
        if request.token_ids[:size] == head.token_ids[:size] and not _holds_chain(request):
            return True
    return False


def _holds_chain(request: Request) -> bool:
    """Returns whether the blocks by which the cache finds the request's tokens are its own, so that none is evicted."""
    node = request.chain
    for block in reversed(request.block_table[: request.num_chained_blocks]):
        if node is None or not node.listed or node.block != block:
            return False
        node = node.parent
    return True
