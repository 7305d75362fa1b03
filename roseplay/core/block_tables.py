"""All operations on block tables: attaching cached blocks, adding new ones, copying before a write, releasing."""

from __future__ import annotations

from collections.abc import Iterable

from roseplay.core.block_pool import BlockPool, OutOfBlocksError
from roseplay.core.cache_entries import COMMITTED, UNKNOWN, Key, Lookup, Match, has_logits
from roseplay.core.cache_miss import Miss, MissReason
from roseplay.core.prefix_cache import PrefixCache
from roseplay.core.request import Request
from roseplay.core.state_slots import StateSlots
from roseplay.core.step import Step


class BlockTables:
    """The requests' block tables over one pool and one prefix cache. The scheduler decides when to change them.

    A request's state slot is released with its blocks. With slots, a prefix is cached only up to where a state is kept.
    """

    def __init__(self, pool: BlockPool, cache: PrefixCache, slots: StateSlots | None = None) -> None:
        self.pool = pool
        self.cache = cache
        self.slots = slots or StateSlots(0)
        self.states = cache.states
        self.block_size = pool.block_size
        self.step_id = 0
        self._holders: list[list[Request]] = [[] for _ in range(pool.num_blocks)]
        self._last_use = [-1] * pool.num_blocks
        self._suspect: set[int] = set()  # held blocks that a failed request computed; never listed again

    def are_suspect(self, blocks: Iterable[int]) -> bool:
        """Whether a failed request has computed one of these held blocks."""
        return not self._suspect.isdisjoint(blocks)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def holders(self, block: int) -> list[int]:
        """Returns the ids of the requests that hold a block, in the order in which they took it."""
        return [request.request_id for request in self._holders[block]]

    def last_use(self, block: int) -> int:
        """Returns the last step in which the block was held, -1 for never."""
        return self.step_id if self._holders[block] else self._last_use[block]

    def describe(self, block: int) -> tuple[int | None, tuple[int, ...]]:
        """Returns a block's index in its request and its tokens; (None, ()) for a block without content."""
        if self._holders[block]:
            request = self._holders[block][0]
            index = request.block_table.index(block)
            end = min((index + 1) * self.block_size, request.num_computed_tokens, request.num_known_tokens)
            return index, tuple(request.token_ids[index * self.block_size : end])
        return self.cache.describe(block)

    def _allocate(self, request: Request) -> int:
        block = self.pool.allocate()
        self._holders[block].append(request)
        self._suspect.discard(block)
        return block

    def _release(self, request: Request, block: int) -> None:
        self.pool.release(block)
        self._holders[block].remove(request)
        self._last_use[block] = self.step_id

    # -- attaching cached blocks

    def match(self, request: Request, lookup: Lookup) -> Match | None:
        """Returns the cached continuation of what the request has computed so far, or None.

        It may begin with the block that the request has partly filled, which is then replaced by the cached one.
        """
        size, tokens, end = self.block_size, request.token_ids, request.prefill_end
        first = index = request.num_computed_tokens // size
        if index != request.num_chained_blocks:
            return None  # its own blocks cannot be found, so nothing can follow them
        match = Match(first, [], [], None, request.num_computed_tokens, 0)
        parent = request.chain
        while index * size < end:
            chunk = tuple(tokens[index * size : min((index + 1) * size, end)])
            node = self.cache.find_block(parent, chunk, lookup) if len(chunk) == size else None
            if (index + 1) * size >= end:
                match.tail = self.cache.find_tail(parent, chunk, lookup)
            entry = node or match.tail
            if entry is None:
                break
            if (
                index * size + len(chunk) == end
                and entry.pending_step != COMMITTED
                and not has_logits(match.tail, lookup)
            ):
                break  # its last token would be recomputed in a copy of a block that this step has not computed yet
            if node is not None:
                match.nodes.append(node)
            match.blocks.append(entry.block)
            match.num_shared += len(chunk) if entry.pending_step != COMMITTED else 0
            match.end = index * size + len(chunk)
            parent = node
            index += 1
        if self.slots.used and match.blocks:
            request.branch = (first + len(match.nodes)) * size
            return self.states.cut(match, end, lookup)
        return match if match.blocks else None

    def attach(self, request: Request, match: Match) -> tuple[int, int]:
        """Attach the matched blocks; returns how many tokens they add from earlier steps, and from this step."""
        gained = match.end - request.num_computed_tokens
        for block in match.blocks:
            self.pool.acquire(block)
            self._holders[block].append(request)
        if match.first == 0:
            entries = (*match.nodes, match.tail)
            own = (i for i, entry in enumerate(entries) if entry is not None and entry.request_id == request.request_id)
            self.pool.pin_first(match.blocks[: next(own, None)])  # not what it computed itself before it was preempted
        self._release_from(request, match.first)
        request.block_table.extend(match.blocks)
        if match.nodes:
            request.chain = match.nodes[-1]
            request.num_chained_blocks = match.first + len(match.nodes)
        request.num_computed_tokens = match.end
        shared = min(match.num_shared, gained)
        return gained - shared, shared

    def explain(self, request: Request, *, committed: bool) -> Miss:
        """Returns why the request has to compute its next prompt token; it has not computed any itself yet.

        Args:
            committed: whether the request may use what earlier steps computed.
        """
        start = request.num_computed_tokens
        if request.lacks_prompt_logprobs:
            return Miss(MissReason.LOGPROBS, start, start)
        if self.slots.used and not self.states.used:
            return Miss(MissReason.STATE, start, start)
        if start < len(request.block_table) * self.block_size:  # the token is in an attached block
            return Miss(MissReason.LOGITS, start, start)
        tokens = tuple(request.token_ids[start : min(start + self.block_size, request.prefill_end)])
        full = len(tokens) == self.block_size
        if self.slots.used and committed and self.cache.holds(request.chain, tokens):
            kept = self.states.has((request.chain, tokens))
            return Miss(MissReason.LOGITS if kept else MissReason.STATE, start, start)
        return self.cache.explain(request.chain, tokens, start, full=full, committed=committed)

    # -- blocks for a request's own tokens

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Extend the block table to hold ``num_tokens`` tokens; returns False, taking none, if too few are free."""
        missing = self.blocks_for(num_tokens) - len(request.block_table)
        if missing > self.pool.num_available:
            return False
        for _ in range(missing):
            request.block_table.append(self._allocate(request))
        return True

    def is_writable(self, request: Request, position: int) -> bool:
        """Returns whether the block at ``position`` is held by this request alone and cannot be found by others."""
        index = position // self.block_size
        if index >= len(request.block_table):
            return False
        block = request.block_table[index]
        return self.pool.ref_counts[block] == 1 and not self.pool.is_findable(block)

    def make_writable(self, request: Request, position: int, *, same_content: bool = False) -> tuple[int, int] | None:
        """Copy-on-write: replace the block at ``position`` by a copy if its content is still needed elsewhere.

        Args:
            same_content: the write leaves the content as it is (the last prompt token is computed again).

        Returns:
            (source, destination) when a copy is needed, else None.

        Raises:
            OutOfBlocksError: a copy is needed and no block is free.
        """
        index, offset = divmod(position, self.block_size)
        block = request.block_table[index]
        held_by_others = self.pool.ref_counts[block] > 1
        if not held_by_others and (same_content or not self.cache.covers(block, offset)):
            return None
        try:
            copy = self._allocate(request)
        except OutOfBlocksError:
            if held_by_others:
                raise
            self.cache.unlist(block)  # the request is the only holder: overwrite cached content rather than fail
            return None
        request.block_table[index] = copy
        self._release(request, block)
        return block, copy

    # -- making computed blocks findable

    def publish_blocks(self, request: Request, step_id: int, keep: bool) -> None:
        """Make the full blocks up to ``num_computed_tokens`` findable; they are pending until the step succeeds.

        Stops before a block with a token that is not known yet, and before a block that a failed request computed.
        """
        full = min(request.num_computed_tokens, request.num_known_tokens) // self.block_size
        if keep and request.chain is not None and not request.chain.listed:
            request.chain, request.num_chained_blocks = None, 0  # the cache dropped the chain: list the blocks again
        size = self.block_size
        for index in range(request.num_chained_blocks, full):
            if request.block_table[index] in self._suspect:
                return
            tokens = tuple(request.token_ids[index * size : (index + 1) * size])
            block = request.block_table[index]
            request.chain = self.cache.insert_block(request.chain, tokens, block, step_id, request.request_id)
            request.num_chained_blocks = index + 1

    def keep_state(self, request: Request, step: Step) -> None:
        """Keep the request's recurrent state at the end of the step if ``StateSnapshots`` wants it and the block that
        ends there can be found, or may be once its last token is known."""
        if self.states.is_wanted(request):
            key = self._end(request) if request.num_known_tokens >= request.num_computed_tokens else UNKNOWN
            if key is not None:
                self.states.save(key, request, step)

    def name_state(self, request: Request) -> None:
        """Make a state kept under ``UNKNOWN`` findable, now that its last token is known."""
        if (key := self._end(request)) is not None:
            self.states.name(key, request)

    def _end(self, request: Request) -> Key | None:
        node = request.chain
        at_end = request.num_chained_blocks * self.block_size == request.num_computed_tokens
        return (node.parent, node.tokens) if at_end and node is not None and node.listed else None

    def publish_tail(self, request: Request, step: Step, entry_index: int, keep: bool) -> int | None:
        """Make the end of a finished prompt findable; returns the key to save its logits under, or None."""
        index = (request.prefill_end - 1) // self.block_size
        parent = request.chain
        if request.num_chained_blocks == index + 1:
            parent = parent.parent if parent is not None else None
        elif request.num_chained_blocks != index or request.block_table[index] in self._suspect:
            return None
        tokens = tuple(request.token_ids[index * self.block_size : request.prefill_end])
        block, by = request.block_table[index], request.request_id
        key = self.cache.insert_tail(parent, tokens, block, step.step_id, by, entry_index=entry_index, save_logits=keep)
        if self.states.used:
            self.states.save((parent, tokens), request, step)
        return key

    # -- releasing

    def forget(self, request: Request) -> None:
        """Make all blocks of a request that the model failed to compute unfindable, since any may hold bad numbers.

        Blocks behind these cannot be found either. Requests that hold some of them keep them, but do not list them
        again.
        """
        self._suspect.update(request.block_table)
        self.states.forget(request)
        for block in request.block_table:
            self.cache.unlist(block)

    def take_back(self, request: Request, num_computed_tokens: int) -> None:
        """Reset ``num_computed_tokens`` after a failed step; the request keeps its blocks."""
        request.num_computed_tokens = num_computed_tokens
        while request.chain is not None and not request.chain.listed:
            request.chain, request.num_chained_blocks = request.chain.parent, request.num_chained_blocks - 1

    def release(self, request: Request) -> None:
        """Release the state slot and all blocks, the last one first: a prefix is then evicted after what follows it."""
        self._release_from(request, 0)
        self.slots.release(request)
        request.chain, request.num_chained_blocks = None, 0
        request.num_computed_tokens = 0

    def _release_from(self, request: Request, first: int) -> None:
        while len(request.block_table) > first:
            self._release(request, request.block_table.pop())
