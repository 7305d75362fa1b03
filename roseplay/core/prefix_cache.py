"""Looks up computed blocks: full blocks by all tokens up to their end, and finished prompts by all of their tokens.

Full blocks form a trie. A node's key is its parent node (by identity) and its own tokens, so a Python dict finds it
by hash and verifies it by equality: two prompts whose hashes collide never share a block. The chained look-up is that
of vLLM's automatic prefix caching. A node that is removed takes all entries behind it along, since none of them could be
found. Same-step sharing works by keeping nodes *pending* in the step that computes them, and *committed* from then on.

A *tail* is the end of a finished prompt: its last block, how many of that block's tokens belong to the prompt, and the
logits after the last one. With it, an exact repeat of the prompt computes nothing at all.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial

from roseplay.core.block_pool import BlockPool
from roseplay.core.cache_entries import COMMITTED, Lookup, Node, Tail, history_of
from roseplay.core.cache_events import CacheLog
from roseplay.core.cache_miss import Lost, Miss, MissReason, Siblings, compared
from roseplay.core.state_snapshots import StateSnapshots


@dataclass(slots=True)
class _Pending:
    nodes: list[Node] = field(default_factory=list)
    tails: list[Tail] = field(default_factory=list)


class PrefixCache:
    """Finds blocks by their tokens. The pool calls back when a block's content is lost.

    Args:
        pool: the blocks; the cache marks the ones that can be found.
        max_saved_logits: prompts whose logits are kept (vocabulary x 4 bytes each); the least recently used go first.
        log: records which full blocks become findable, once their step has succeeded, and which cease to be.
        states: the kept states of recurrent layers; they are dropped together with the blocks.
    """

    def __init__(
        self, pool: BlockPool, max_saved_logits: int, log: CacheLog | None = None, states: StateSnapshots | None = None
    ) -> None:
        self.states = states or StateSnapshots()
        self.step_id = 0  # the step that is being scheduled, or was last
        self.log = log
        self._pool = pool
        self._max_saved_logits = max_saved_logits
        self._nodes: dict[tuple[Node | None, tuple[int, ...]], Node] = {}
        self._tails: dict[tuple[Node | None, tuple[int, ...]], Tail] = {}
        self._node_of_block: dict[int, Node] = {}
        self._tails_of_block: dict[int, list[Tail]] = {}
        self._logits: OrderedDict[int, Tail] = OrderedDict()
        self._next_logits_key = 0
        self._dropped_logits: list[int] = []
        self._pending = _Pending()
        self._unproven = _Pending()  # committed, while their step is still in flight
        self._siblings = Siblings()
        self._lost = Lost()
        pool.on_evict = partial(self.unlist, reason=MissReason.EVICTED)

    # -- finding

    def find_block(self, parent: Node | None, tokens: tuple[int, ...], lookup: Lookup) -> Node | None:
        """Returns the full block that continues ``parent`` with ``tokens``, or None."""
        node = self._nodes.get((parent, tokens))
        return node if node is not None and lookup.allows(node) else None

    def find_tail(self, parent: Node | None, tokens: tuple[int, ...], lookup: Lookup) -> Tail | None:
        """Returns the end of a finished prompt that continues ``parent`` with ``tokens``, or None."""
        tail = self._tails.get((parent, tokens))
        if tail is None or not lookup.allows(tail):
            return None
        if tail.logits_key is not None:
            self._logits.move_to_end(tail.logits_key)
        return tail

    def holds(self, parent: Node | None, tokens: tuple[int, ...]) -> bool:
        """Returns whether an earlier step computed ``tokens`` behind ``parent``, as a full block or a prompt's end."""
        entry = self._nodes.get((parent, tokens)) or self._tails.get((parent, tokens))
        return entry is not None and entry.pending_step == COMMITTED

    def explain(self, parent: Node | None, tokens: tuple[int, ...], start: int, *, full: bool, committed: bool) -> Miss:
        """Returns why ``tokens``, at position ``start`` of a prompt, were not found behind ``parent``.

        Args:
            full: whether the tokens fill a block; else the prompt ends with them.
            committed: whether the request may use what earlier steps computed.
        """
        if not committed:
            return Miss(MissReason.OFF, start, start)
        entry = self._nodes.get((parent, tokens)) or self._tails.get((parent, tokens))
        if entry is not None and entry.pending_step != COMMITTED:
            return Miss(MissReason.COMPUTING, start, start, entry.request_id)
        if (lost := self._lost.find(history_of(parent), tokens)) is not None:
            return Miss(lost[1], start, start, step_id=lost[0])
        nearest = self._siblings.nearest(parent, tokens)
        sibling = None if nearest is None else self._nodes.get((parent, nearest)) or self._tails[parent, nearest]
        by = -1 if sibling is None else sibling.request_id
        return compared(tokens, start, nearest or (), by, first=parent is None, full=full)

    def covers(self, block: int, offset: int) -> bool:
        """Returns whether writing at ``offset`` of ``block`` would overwrite content that can be found."""
        if block in self._node_of_block:
            return True
        return any(len(tail.tokens) > offset for tail in self._tails_of_block.get(block, ()))

    def describe(self, block: int) -> tuple[int | None, tuple[int, ...]]:
        """Returns a findable block's index in its prompt and its tokens; (None, ()) for any other block."""
        tails = self._tails_of_block.get(block)
        entry: Node | Tail | None = self._node_of_block.get(block) or (tails[-1] if tails else None)
        if entry is None:
            return None, ()
        depth, parent = 0, entry.parent
        while parent is not None:
            depth, parent = depth + 1, parent.parent
        return depth, entry.tokens

    # -- inserting

    def insert_block(
        self, parent: Node | None, tokens: tuple[int, ...], block: int, pending_step: int, request_id: int
    ) -> Node:
        """Make a full block of a request findable. Returns its node, or the existing node with the same content."""
        if (known := self._nodes.get((parent, tokens))) is not None:
            return known
        node = Node(parent, tokens, block, pending_step, request_id)
        self._nodes[parent, tokens] = node
        self._siblings.add(parent, tokens)
        self._node_of_block[block] = node
        self._pool.set_findable(block, True)
        if pending_step != COMMITTED:
            self._pending.nodes.append(node)
        return node

    def insert_tail(
        self,
        parent: Node | None,
        tokens: tuple[int, ...],
        block: int,
        pending_step: int,
        request_id: int,
        *,
        entry_index: int,
        save_logits: bool,
    ) -> int | None:
        """Make the end of a finished prompt findable; returns the key to save its logits under, or None."""
        if (tail := self._tails.get((parent, tokens))) is None:
            tail = Tail(parent, tokens, block, pending_step, request_id)
            self._tails[parent, tokens] = tail
            self._siblings.add(parent, tokens)
            self._tails_of_block.setdefault(block, []).append(tail)
            self._pool.set_findable(block, True)
        elif tail.logits_key is not None or tail.entry_index is not None:
            return None  # the same prompt was computed twice: keep the logits of the first
        self._pending.tails.append(tail)
        tail.entry_index = entry_index
        if not save_logits or self._max_saved_logits < 1:
            return None
        tail.logits_key = self._next_logits_key
        self._next_logits_key += 1
        self._logits[tail.logits_key] = tail
        while len(self._logits) > self._max_saved_logits:
            self._drop_logits(next(iter(self._logits.values())))
        return tail.logits_key

    # -- steps

    def commit(self, keep: bool) -> None:
        """Commit the pending entries, assuming that their step succeeds; until ``confirm``, ``roll_back`` undoes this.
        Those behind a node that was dropped, and all without ``keep``, as when the prefix cache is off, are removed."""
        self.states.commit()
        if not self._pending.nodes and not self._pending.tails:
            return
        pending, self._pending = self._pending, _Pending()
        self._unproven.nodes += pending.nodes
        self._unproven.tails += pending.tails
        for tail in pending.tails:
            tail.pending_step = COMMITTED
            tail.entry_index = None
            if not keep or (tail.parent and not tail.parent.listed):
                self._remove_tail(tail)
        for node in pending.nodes:
            node.pending_step = COMMITTED
            if not keep or (node.parent and not node.parent.listed):
                self._remove_node(node)

    def confirm(self) -> None:
        """Confirm that the steps of all committed entries succeeded; these can no longer be rolled back."""
        self.states.confirm()
        if self.log is not None:
            for node in self._unproven.nodes:
                if node.listed:
                    self.log.store(history_of(node), None if node.parent is None else history_of(node.parent))
                    node.logged = True
        self._unproven = _Pending()

    def roll_back(self) -> None:
        """Remove the entries of the steps that failed: all that are pending or not confirmed."""
        self.states.roll_back()
        for failed in (self._pending, self._unproven):
            for tail in failed.tails:
                self._remove_tail(tail)
            for node in failed.nodes:
                self._remove_node(node)
        self._pending, self._unproven = _Pending(), _Pending()

    def take_dropped_logits(self) -> list[int]:
        """Returns the keys of saved logits that became unreachable since the last call."""
        dropped, self._dropped_logits = self._dropped_logits, []
        return dropped

    # -- forgetting

    def unlist(self, block: int, reason: MissReason | None = None) -> None:
        """Remove a block's entries and all behind them, as when its sole holder is about to write over its content.

        Args:
            reason: what ``explain`` will say of those that were committed; None if it should not know of them.
        """
        if (node := self._node_of_block.get(block)) is not None:
            self._remove_node(node, reason)
        for tail in list(self._tails_of_block.get(block, ())):
            self._remove_tail(tail, reason)

    def clear(self) -> None:
        """Empty the cache; requests keep the blocks that they hold."""
        if self.log is not None:
            for node in self._node_of_block.values():
                node.logged = False
            self.log.clear()
        for block in [*self._node_of_block, *self._tails_of_block]:
            self.unlist(block, MissReason.CLEARED)

    def _note_lost(self, entry: Node | Tail, reason: MissReason | None) -> None:
        if reason is not None and entry.pending_step == COMMITTED:
            self._lost.add(history_of(entry.parent), entry.tokens, self.step_id, reason)

    def _remove_node(self, node: Node, reason: MissReason | None = None) -> None:
        """Remove a node, after all entries behind it."""
        if not node.listed:
            return
        nodes = [node]
        for parent in nodes:  # grows
            for tokens in self._siblings.behind(parent):
                if (child := self._nodes.get((parent, tokens))) is not None:
                    nodes.append(child)
                if (tail := self._tails.get((parent, tokens))) is not None:
                    self._remove_tail(tail, reason)
        for last in reversed(nodes):
            self._remove_leaf(last, reason)

    def _remove_leaf(self, node: Node, reason: MissReason | None) -> None:
        self._note_lost(node, reason)
        node.listed = False
        if node.logged and self.log is not None:
            self.log.remove(history_of(node))
        del self._nodes[node.parent, node.tokens]
        self._siblings.remove(node.parent, node.tokens)
        del self._node_of_block[node.block]
        self.states.drop((node.parent, node.tokens))
        self._update_findable(node.block)
        tail = self._tails.get((node.parent, node.tokens))
        if tail is not None and tail.block != node.block:  # a prompt of the same tokens in another block
            self._remove_tail(tail, reason)

    def _remove_tail(self, tail: Tail, reason: MissReason | None = None) -> None:
        if self._tails.get((tail.parent, tail.tokens)) is not tail:
            return
        self._note_lost(tail, reason)
        del self._tails[tail.parent, tail.tokens]
        self._siblings.remove(tail.parent, tail.tokens)
        tails = self._tails_of_block[tail.block]
        tails.remove(tail)
        if not tails:
            del self._tails_of_block[tail.block]
        self._drop_logits(tail)
        self.states.drop((tail.parent, tail.tokens))
        self._update_findable(tail.block)

    def _update_findable(self, block: int) -> None:
        if block not in self._node_of_block and block not in self._tails_of_block:
            self._pool.set_findable(block, False)

    def _drop_logits(self, tail: Tail) -> None:
        if tail.logits_key is not None:
            del self._logits[tail.logits_key]
            self._dropped_logits.append(tail.logits_key)
            tail.logits_key = None
