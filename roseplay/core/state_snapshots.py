"""Kept recurrent states: with a cached prefix of KV blocks, a model with recurrent layers also needs its state there.

A state exists only at the end of what a step computes, so prompts are cut into chunks that end where a state is to be
kept: after every n-th block, after the last full block, at the end of the prompt, and where another prompt's cached
blocks ended without a state. The model runner copies the state from the request's slot after the step, and into
another request's slot before a later step. Requests that share a prompt within one step receive the state at the end
of that step, and compute from the next step on.

In an answer only the last full block matters: the chat's next turn continues from there, and so does the request
itself after a preemption. Each full block's state therefore replaces the one before, and an answer takes one kept
state however long it is. Keeping one state per interval instead would save little, since most answers are shorter
than an interval: for Qwen3.5-0.8B on a CPU, a copy takes 3 ms, once in 16 decodes of 61 ms, and computing a block's
16 tokens again takes 60 ms.
"""

from __future__ import annotations

from collections import OrderedDict

from roseplay.core.cache_entries import COMMITTED, UNKNOWN, KeptState, Key, Lookup, Match, has_logits
from roseplay.core.request import Request
from roseplay.core.state_slots import NOBODY
from roseplay.core.step import Step

_NOTHING = (NOBODY, 0)


class StateSnapshots:
    """The states that can be found, least recently used first; each belongs to a node or a tail of the prefix cache.

    Args:
        num_state_slots: number of slots for requests; the slots of kept states are numbered after them.
        num_snapshots: most states that are kept; 0 keeps none.
        interval: a prompt's state is kept every ``interval`` tokens, a multiple of the block size; 0 keeps it only
            where a chunk happens to end.
        block_size: tokens per block.
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
        """All kept states, the least recently used first."""
        return list(self._kept.values())

    def take_changed(self) -> dict[int, tuple[int, int]]:
        """Returns the slots whose content changed since the last call, each with the id of the request whose state it
        holds and that state's number of tokens; ``NOBODY`` and 0 for an empty slot. The first call returns all
        slots."""
        changed, self._changed = self._changed, {}
        return changed

    def has(self, key: Key) -> bool:
        return key in self._kept

    # -- where to keep

    def boundary(self, request: Request, start: int, end: int) -> int:
        """Returns where a prompt's chunk from ``start`` to ``end`` has to stop: at the first position at which a
        state is to be kept, else at ``end``."""
        if not self.used or not self._interval:
            return end
        stops = (start - start % self._interval + self._interval, self._last_full_block(request), request.branch)
        return min((stop for stop in stops if start < stop < end), default=end)

    def is_wanted(self, request: Request) -> bool:
        """Returns whether the state after the request's computed tokens is to be kept; they must end a block."""
        end = request.num_computed_tokens
        if not self.used or end % self._block_size:
            return False
        at_interval = self._interval > 0 and end % self._interval == 0
        return at_interval or _is_in_answer(request) or end in (self._last_full_block(request), request.branch)

    def _last_full_block(self, request: Request) -> int:
        return request.prefill_end - request.prefill_end % self._block_size

    # -- keeping and finding

    def save(self, key: Key, request: Request, step: Step) -> None:
        """Keep the request's state as it is after ``step``, unless it is kept already or no slot can be freed.

        In an answer it replaces the state before. With the key ``UNKNOWN`` it cannot be found until ``name`` gives it a
        key, which must happen before the step is over.
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
        """Give a key to the state that the request's last step keeps, now that the token at its end is known."""
        state = request.answer_state
        if state is None or state.pending_step != request.last_step or key in self._kept:
            return
        state.key = key
        self._list(state)

    def _list(self, state: KeptState) -> None:
        self._kept[state.key] = state
        self._changed[state.slot] = (state.request_id, state.num_tokens)

    def _drop_oldest(self, in_answer: bool) -> bool:
        """Free the slot of the least recently used state; returns False if no state may be dropped.

        States in answers displace those of prompts only until they have half of the slots, so that the states of shared
        prompts stay. States of the step being scheduled are not dropped.
        """
        only_answers = in_answer and 2 * (self._num_in_answers + 1) > self.num_snapshots
        for state in self._kept.values():
            if state.pending_step == COMMITTED and (state.in_answer or not only_answers):
                self.drop(state.key)
                return True
        return False

    def restore(self, state: KeptState, request: Request, step: Step) -> bool:
        """Copy a kept state to the request's slot; returns False if the request can only continue in the next step."""
        self._kept.move_to_end(state.key)
        if state.pending_step == COMMITTED:
            step.states_before.append((state.slot, request.state_slot))
            return True
        step.states_after.append((state.source, request.state_slot))
        return False

    def cut(self, match: Match, end: int, lookup: Lookup) -> Match | None:
        """Returns the longest part of ``match`` at whose end a state is kept, or None.

        It extends to the end of the prompt, ``end``, only if the logits there are available as well.
        """
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
        """Drop the state under ``key``, if there is one, because the entry it belongs to is no longer findable."""
        if (state := self._kept.pop(key, None)) is None:
            return
        self._changed[state.slot] = _NOTHING
        if state.pending_step == COMMITTED:  # else the step being scheduled still writes there
            self._release(state)

    def _release(self, state: KeptState) -> None:
        self._free.append(state.slot)
        self._num_in_answers -= state.in_answer

    def forget(self, request: Request) -> None:
        """Drop all states of a request that the model failed to compute."""
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
    """Returns whether the last token that the request has computed belongs to its answer."""
    return request.num_computed_tokens > request.num_prompt_tokens
