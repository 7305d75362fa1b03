"""Kept states: what a request of a model with recurrent layers goes on from, beside the blocks that it attaches.

A state exists only at the end of what a step computes, so a prompt's chunks end where its state is to be kept: at every n-th
block, at the prompt's last full block, at its very end, and where blocks of another prompt ended that had no state. The model
runner copies it from the request's slot after the step, and to another request's slot before a later one. Those who share a
prompt with a request of the same step get its state at the end of the step, and compute from the next one on.

In an answer it is the last full block that counts: from there the chat's next turn goes on, or the request itself once it is
preempted. So each full block's state takes the place of the one before, and an answer costs one kept state however long it is.
To keep one after each interval only would spare little: most answers are shorter than an interval, and of Qwen3.5-0.8B, on a
CPU, a copy takes 3 ms, once in 16 decodes of 61 ms, where computing a block's 16 tokens again takes 60 ms.
"""

from __future__ import annotations

from collections import OrderedDict

from roseplay.core.cache_entries import COMMITTED, UNKNOWN, KeptState, Key, Lookup, Match, has_logits
from roseplay.core.request import Request
from roseplay.core.state_slots import NOBODY
from roseplay.core.step import Step

_NOTHING = (NOBODY, 0)


class StateSnapshots:
    """The states that can be found, the least recently used first; each belongs to a node or a tail of the prefix cache.

    Args:
        num_state_slots: of requests; the slots of kept states are numbered from behind them.
        num_snapshots: states that are kept at most; 0 keeps none.
        interval: tokens, a multiple of the block size: a prompt's state is kept after each so many of them. 0: only where
            a chunk ends anyway.
        block_size: in tokens.
    """

    def __init__(
        self, num_state_slots: int = 0, num_snapshots: int = 0, interval: int = 0, block_size: int = 1
    ) -> None:
        self.num_snapshots = num_snapshots
        self._interval, self._block_size = interval, block_size
        self._free = list(range(num_state_slots + num_snapshots, num_state_slots, -1))
        self._changed = dict.fromkeys(self._free, _NOTHING)
        self._kept: OrderedDict[Key, KeptState] = OrderedDict()
        self._pending: list[KeptState] = []
        self._unproven: list[KeptState] = []  # committed, while their step is still in flight
        self._num_in_answers = 0  # slots that states in answers have

    @property
    def used(self) -> bool:
        return self.num_snapshots > 0

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    @property
    def kept(self) -> list[KeptState]:
        """All that are kept, the least recently used first."""
        return list(self._kept.values())

    def take_changed(self) -> dict[int, tuple[int, int]]:
        """Slots whose kept state is another since the last call: whose state it was and after how many tokens, or
        ``NOBODY`` and 0 where none is kept; at first, all of them."""
        changed, self._changed = self._changed, {}
        return changed

    def has(self, key: Key) -> bool:
        return key in self._kept

    # -- where to keep

    def boundary(self, request: Request, start: int, end: int) -> int:
        """Where a chunk of a prompt from ``start`` to ``end`` is to stop: at the first token behind which its state is to be
        kept, ``end`` where there is none."""
        if not self.used or not self._interval:
            return end
        stops = (start - start % self._interval + self._interval, self._last_full_block(request), request.branch)
        return min((stop for stop in stops if start < stop < end), default=end)

    def is_wanted(self, request: Request) -> bool:
        """Whether the state after what the request computes is to be kept, if it is at the end of a block."""
        end = request.num_computed_tokens
        if not self.used or end % self._block_size:
            return False
        at_interval = self._interval > 0 and end % self._interval == 0
        return at_interval or _is_in_answer(request) or end in (self._last_full_block(request), request.branch)

    def _last_full_block(self, request: Request) -> int:
        return request.prefill_end - request.prefill_end % self._block_size

    # -- keeping and finding

    def save(self, key: Key, request: Request, step: Step) -> None:
        """Keep the request's state as it is after ``step``; not if it is kept already, or no slot is to be had.

        In an answer it replaces the one before. With the key ``UNKNOWN`` it is found once it is named, before its step is over.
        """
        if key in self._kept:
            self._kept.move_to_end(key)
            return
        in_answer, before = _is_in_answer(request), request.answer_state
        if in_answer and before is not None and self._kept.get(before.key) is before:
            self.drop(before.key)
        if not self._free and not self._drop_oldest(in_answer):
            return
        about = request.request_id, request.num_computed_tokens, in_answer
        state = KeptState(key, self._free.pop(), request.state_slot, step.step_id, *about)
        if in_answer:
            self._num_in_answers += 1
            request.answer_state = state
        if key != UNKNOWN:
            self._list(state)
        self._pending.append(state)
        step.states_after.append((request.state_slot, state.slot))

    def name(self, key: Key, request: Request) -> None:
        """The token behind which a state of the request was kept, in the last step that computes for it, is known."""
        state = request.answer_state
        if state is None or state.pending_step != request.last_step or key in self._kept:
            return
        state.key = key
        self._list(state)

    def _list(self, state: KeptState) -> None:
        self._kept[state.key] = state
        self._changed[state.slot] = (state.request_id, state.num_tokens)

    def _drop_oldest(self, in_answer: bool) -> bool:
        """Free the slot of the least recently used state; returns False if every slot belongs to this step.

        Answers may take at most half of the slots from prompts, so that the states of shared prompts stay.
        """
        only_answers = in_answer and 2 * (self._num_in_answers + 1) > self.num_snapshots
        for state in self._kept.values():
            if state.pending_step == COMMITTED and (state.in_answer or not only_answers):
                self.drop(state.key)
                return True
        return False

    def restore(self, state: KeptState, request: Request, step: Step) -> bool:
        """The request goes on from a kept state; returns whether in this very step, or from the next one on."""
        self._kept.move_to_end(state.key)
        if state.pending_step == COMMITTED:
            step.states_before.append((state.slot, request.state_slot))
            return True
        step.states_after.append((state.source, request.state_slot))
        return False

    def cut(self, match: Match, end: int, lookup: Lookup) -> Match | None:
        """The longest part of ``match`` at whose end a state is kept; the whole prompt, up to ``end``, only if its logits are
        there as well."""
        tail = match.tail
        if match.end == end and tail is not None and has_logits(tail, lookup):
            match.state = self._find((tail.parent, tail.tokens), lookup)
            if match.state is not None:
                return match
        size = self._block_size
        for count in range(len(match.nodes), 0, -1):
            node = match.nodes[count - 1]
            state = self._find((node.parent, node.tokens), lookup)
            if state is None or (match.first + count) * size >= end:
                continue
            nodes = match.nodes[:count]
            shared = size * sum(1 for node in nodes if node.pending_step != COMMITTED)
            return Match(match.first, match.blocks[:count], nodes, None, (match.first + count) * size, shared, state)
        return None

    def _find(self, key: Key, lookup: Lookup) -> KeptState | None:
        state = self._kept.get(key)
        return state if state is not None and lookup.allows(state) else None

    # -- forgetting

    def drop(self, key: Key) -> None:
        """What ``key`` belongs to cannot be found any more."""
        state = self._kept.pop(key, None)
        if state is None:
            return
        self._changed[state.slot] = _NOTHING
        if state.pending_step == COMMITTED:  # else the step being scheduled still writes there
            self._release(state)

    def _release(self, state: KeptState) -> None:
        self._free.append(state.slot)
        self._num_in_answers -= state.in_answer

    def forget(self, request: Request) -> None:
        """The model could not compute the request: no state of it stays."""
        for state in self.kept:
            if state.request_id == request.request_id:
                self.drop(state.key)

    # -- steps, as in ``PrefixCache``

    def commit(self) -> None:
        pending, self._pending = self._pending, []
        self._unproven += pending
        for state in pending:
            state.pending_step = COMMITTED
            if self._kept.get(state.key) is not state:
                self._release(state)

    def confirm(self) -> None:
        self._unproven = []

    def roll_back(self) -> None:
        self.commit()
        for state in self._unproven:
            if self._kept.get(state.key) is state:
                self.drop(state.key)
        self._unproven = []


def _is_in_answer(request: Request) -> bool:
    """Whether the last token that the request computes belongs to its answer."""
    return request.num_computed_tokens > request.num_prompt_tokens
