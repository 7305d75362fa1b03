"""Checks each reason why tokens were not cached against everything that the cache holds and has ever lost."""

from __future__ import annotations

from typing import Any

from roseplay.core.cache_entries import COMMITTED, Node, Tail
from roseplay.core.cache_miss import MOST_QUOTED, Miss, MissReason
from roseplay.core.request import Request
from roseplay.core.scheduler import Scheduler
from roseplay.core.step import Step
from tests.core.device import Truth

LOST = (MissReason.EVICTED, MissReason.CLEARED)


class Explanations:
    """Checks each explanation as soon as it is made.

    Args:
        truths: all requests so far, by id.
    """

    def __init__(self, scheduler: Scheduler, truths: dict[int, Truth]) -> None:
        self._scheduler, self._truths = scheduler, truths
        self._lost: dict[tuple[int, ...], tuple[int, MissReason]] = {}
        self.told: dict[MissReason, int] = dict.fromkeys(MissReason, 0)
        cache = scheduler.cache
        self._explain, self._clear, self._evict = cache.explain, cache.clear, scheduler.pool.on_evict
        self._explain_for = scheduler.tables.explain
        scheduler.tables.explain = self._explained_request  # type: ignore[method-assign]
        cache.explain = self._explained  # type: ignore[method-assign]
        cache.clear = self._cleared  # type: ignore[method-assign]
        scheduler.pool.on_evict = self._evicted

    def check_step(self, step: Step) -> None:
        """A step that has just been scheduled: each request that begins to compute its prompt gives a reason, once."""
        told = dict(step.misses)
        assert len(told) == len(step.misses)
        for entry in step.entries:
            request = entry.request
            miss = told.pop(request.request_id, None)
            assert miss is None or miss == request.miss
            if miss is not None:
                assert entry.num_prompt_tokens
                assert entry.start == miss.found
                self.told[miss.reason] += 1
            if miss is not None and miss.reason is MissReason.LOGITS and not self._scheduler.slots.used:
                assert (entry.num_tokens, entry.start) == (1, request.prefill_end - 1)
            assert request.miss is not None or not entry.num_prompt_tokens
        assert all(number not in self._scheduler.requests or not entries(step, number) for number in told)

    # -- lost content

    def _entries(self) -> list[Node | Tail]:
        cache = self._scheduler.cache
        return [*cache._nodes.values(), *cache._tails.values()]

    def _note(self, reason: MissReason, block: int | None = None) -> None:
        """Note what is lost with a block: its entries, and all behind them; they come after those that they follow."""
        lost: set[Node | Tail | None] = set()
        for entry in self._entries():
            if block in (None, entry.block) or entry.parent in lost:
                lost.add(entry)
                if entry.pending_step == COMMITTED:
                    self._lost[path(entry)] = (self._scheduler.next_step_id - 1, reason)

    def _evicted(self, block: int) -> None:
        self._note(MissReason.EVICTED, block)
        assert self._evict is not None
        self._evict(block)

    def _cleared(self) -> None:
        self._note(MissReason.CLEARED)
        self._clear()

    # -- explanations

    def _explained_request(self, request: Request, *, committed: bool) -> Miss:
        """For a model with recurrent layers: whether the state or the logits are missing although the blocks exist."""
        miss = self._explain_for(request, committed=committed)
        states, start = self._scheduler.cache.states, request.num_computed_tokens
        if not self._scheduler.slots.used:
            assert miss.reason is not MissReason.STATE
        elif not states.used:
            assert miss.reason in (MissReason.STATE, MissReason.LOGPROBS)
        elif miss.reason not in (MissReason.OFF, MissReason.LOGPROBS):
            tokens = tuple(request.token_ids[: min(start + self._scheduler.block_size, request.prefill_end)])
            there = [path(entry) for entry in self._entries() if entry.pending_step == COMMITTED]
            kept = [(*path(state.key[0]), *state.key[1]) for state in states.kept]
            # Blocks behind evicted ones cannot be found, even if some of them are still there.
            assert tokens in there or miss.reason not in (MissReason.STATE, MissReason.LOGITS)
            assert (tokens in kept) >= (miss.reason is MissReason.LOGITS)
        return miss

    def _explained(self, parent: Node | None, tokens: tuple[int, ...], start: int, **how: Any) -> Miss:
        miss = self._explain(parent, tokens, start, **how)
        before = path(parent)
        assert (len(before), start % self._scheduler.block_size) == (start, 0)
        assert miss.found == start <= miss.position
        if not how["committed"]:
            assert miss == Miss(MissReason.OFF, start, start)
            return miss
        beside = [entry for entry in self._entries() if entry.parent is parent]
        same = [entry for entry in beside if entry.tokens == tokens and entry.pending_step != COMMITTED]
        assert (miss.reason is MissReason.COMPUTING) == bool(same)
        if same:
            assert miss.request_id in [entry.request_id for entry in same]
            assert miss.request_id in self._scheduler.requests
            return miss
        lost = self._lost.get((*before, *tokens))
        assert (miss.reason in LOST) == (lost is not None)
        if lost is not None:
            assert (miss.step_id, miss.reason) == lost
            return miss
        self._check_nearest(miss, beside, tokens, how["full"])
        return miss

    def _check_nearest(self, miss: Miss, beside: list[Node | Tail], tokens: tuple[int, ...], full: bool) -> None:
        equal = [alike(entry.tokens, tokens) for entry in beside]
        most = max(equal, default=0)
        assert miss.position == miss.found + most
        if miss.reason is MissReason.NEW:
            assert (most, miss.found) == (0, 0)
        elif miss.reason is MissReason.ENDS:
            assert full
            assert not beside
        else:
            assert (miss.reason is MissReason.SHORT) == (not full)
        if miss.request_id < 0:
            assert miss.tokens == ()
            return
        nearest = [e for e, n in zip(beside, equal, strict=True) if n == most and e.request_id == miss.request_id]
        rests = [entry.tokens[most : most + MOST_QUOTED] for entry in nearest]
        assert miss.tokens in rests
        content = path(nearest[rests.index(miss.tokens)])
        assert tuple(self._truths[miss.request_id].tokens[: len(content)]) == content, "not that request's tokens"
        if miss.reason is MissReason.DIFFERS:
            assert miss.tokens[0] != tokens[most]
        if miss.reason is MissReason.UNFILLED:
            assert miss.tokens == ()
            assert 0 < most < self._scheduler.block_size


def entries(step: Step, number: int) -> list[Any]:
    return [entry for entry in step.entries if entry.request.request_id == number]


def alike(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n


def path(entry: Node | Tail | None) -> tuple[int, ...]:
    """All tokens up to the end of an entry."""
    parts: list[tuple[int, ...]] = []
    at = entry
    while at is not None:
        parts.append(at.tokens)
        at = at.parent
    return tuple(token for part in reversed(parts) for token in part)
