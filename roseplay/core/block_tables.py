"""What happens to a request's block table: blocks are attached, added, copied before a write, and released."""

from __future__ import annotations

from roseplay.core.block_pool import BlockPool, OutOfBlocksError
from roseplay.core.cache_entries import COMMITTED, UNKNOWN, Key, Lookup, Match, has_logits
from roseplay.core.cache_miss import Miss, MissReason
from roseplay.core.prefix_cache import PrefixCache
from roseplay.core.request import Request
from roseplay.core.state_slots import StateSlots
from roseplay.core.step import Step


class BlockTables:
    """Block tables over one pool and one prefix cache; the scheduler decides when, this does it.

    A request gives up its state slot together with its blocks. With a slot it finds only what it has a state for.
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
        self._suspect: set[int] = set()  # held blocks that a failed request computed; not to be found again

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def holders(self, block: int) -> list[int]:
        """Ids of the requests that hold a block, the longest holder first."""
        return [request.request_id for request in self._holders[block]]

    def last_use(self, block: int) -> int:
        """The last step in which somebody held the block, -1 for never."""
        return self.step_id if self._holders[block] else self._last_use[block]

    def describe(self, block: int) -> tuple[int | None, tuple[int, ...]]:
        """A block's place in its prompt (0 is the first) and the tokens in it; (None, ()) for a block without content."""
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

    # -- attaching what others computed

    def match(self, request: Request, lookup: Lookup) -> Match | None:
        """What of the request's wanted tokens can be found beyond what it has, or None.

        Every full block counts, and the block it is in the middle of too: its own part of it is then given up.
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
            found = node or match.tail
            if found is None:
                break
            if (
                index * size + len(chunk) == end
                and found.pending_step != COMMITTED
                and not has_logits(match.tail, lookup)
            ):
                break  # its last token is computed again, into a copy, and what this step computes cannot be copied yet
            if node is not None:
                match.nodes.append(node)
            match.blocks.append(found.block)
            match.num_shared += len(chunk) if found.pending_step != COMMITTED else 0
            match.end = index * size + len(chunk)
            parent = node
            index += 1
        if self.slots.used and match.blocks:
            request.branch = (first + len(match.nodes)) * size
            return self.states.cut(match, end, lookup)
        return match if match.blocks else None

    def attach(self, request: Request, match: Match) -> tuple[int, int]:
        """Take the matched blocks; returns how many tokens came from earlier steps and from this one."""
        gained = match.end - request.num_computed_tokens
        for block in match.blocks:
            self.pool.acquire(block)
            self._holders[block].append(request)
        self._release_from(request, match.first)
        request.block_table.extend(match.blocks)
        if match.nodes:
            request.chain = match.nodes[-1]
            request.num_chained_blocks = match.first + len(match.nodes)
        request.num_computed_tokens = match.end
        shared = min(match.num_shared, gained)
        return gained - shared, shared

    def explain(self, request: Request, *, committed: bool) -> Miss:
        """Why the request has to compute its next prompt token, none of which it has computed yet.

        Args:
            committed: whether what earlier steps computed could be used.
        """
        start = request.num_computed_tokens
        if request.lacks_prompt_logprobs:
            return Miss(MissReason.LOGPROBS, start, start)
        if self.slots.used and not self.states.used:
            return Miss(MissReason.STATE, start, start)
        if start < len(request.block_table) * self.block_size:  # it is in a block that was attached
            return Miss(MissReason.LOGITS, start, start)
        tokens = tuple(request.token_ids[start : min(start + self.block_size, request.prefill_end)])
        full = len(tokens) == self.block_size
        if self.slots.used and committed and self.cache.holds(request.chain, tokens):
            kept = self.states.has((request.chain, tokens))
            return Miss(MissReason.LOGITS if kept else MissReason.STATE, start, start)
        return self.cache.explain(request.chain, tokens, start, full=full, committed=committed)

    # -- room for a request's own tokens

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Blocks for the request's first ``num_tokens`` tokens; False (and nothing taken) when too few are free."""
        missing = self.blocks_for(num_tokens) - len(request.block_table)
        if missing > self.pool.num_available:
            return False
        for _ in range(missing):
            request.block_table.append(self._allocate(request))
        return True

    def is_writable(self, request: Request, position: int) -> bool:
        """Whether the request has a block for ``position`` that is its own, and that nobody could find."""
        index = position // self.block_size
        if index >= len(request.block_table):
            return False
        block = request.block_table[index]
        return self.pool.ref_counts[block] == 1 and not self.pool.is_findable(block)

    def make_writable(self, request: Request, position: int, *, same_content: bool = False) -> tuple[int, int] | None:
        """Copy-on-write: give the request a copy of the block it will write at ``position`` if anybody needs the old.

        Args:
            same_content: what is written there equals what is there (a last prompt token computed again).

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
            self.cache.unlist(block)  # the sole holder gives up what could be found rather than fail
            return None
        request.block_table[index] = copy
        self._release(request, block)
        return block, copy

    # -- letting others find what a request computes

    def publish_blocks(self, request: Request, step_id: int, keep: bool) -> None:
        """Make the full blocks findable up to ``num_computed_tokens``; pending until the step succeeds.

        A block with a token that is not known yet is left for the next time, and so is all from a block on that a failed
        request computed.
        """
        full = min(request.num_computed_tokens, request.num_known_tokens) // self.block_size
        if keep and request.chain is not None and not request.chain.listed:
            request.chain, request.num_chained_blocks = None, 0  # it was forgotten: list the blocks again
        size = self.block_size
        for index in range(request.num_chained_blocks, full):
            if request.block_table[index] in self._suspect:
                return
            tokens = tuple(request.token_ids[index * size : (index + 1) * size])
            block = request.block_table[index]
            request.chain = self.cache.insert_block(request.chain, tokens, block, step_id, request.request_id)
            request.num_chained_blocks = index + 1

    def keep_state(self, request: Request, step: Step) -> None:
        """Keep the state after what the request computes in the step, if it is wanted and its end can be found, or may be
        once its last token is known."""
        if self.states.is_wanted(request):
            known = request.num_known_tokens >= request.num_computed_tokens
            key = self._end(request) if known else UNKNOWN
            if key is not None:
                self.states.save(key, request, step)

    def name_state(self, request: Request) -> None:
        """The last token that the request computes is known now: a state kept after it can be found, if its end can be."""
        key = self._end(request)
        if key is not None:
            self.states.name(key, request)

    def _end(self, request: Request) -> Key | None:
        node = request.chain
        at_end = request.num_chained_blocks * self.block_size == request.num_computed_tokens
        return (node.parent, node.tokens) if at_end and node is not None and node.listed else None

    def publish_tail(self, request: Request, step: Step, entry_index: int, keep: bool) -> int | None:
        """Make a finished prompt's end findable; returns the key to save its logits under."""
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

    # -- giving up

    def forget(self, request: Request) -> None:
        """The model could not compute the request, nobody knows since which token: nothing of it stays findable.

        Neither is what others computed behind its blocks, since a look-up begins at the first one. Who holds some of these
        keeps them, but does not list them again.
        """
        self._suspect.update(request.block_table)
        self.states.forget(request)
        for block in request.block_table:
            self.cache.unlist(block)

    def take_back(self, request: Request, num_computed_tokens: int) -> None:
        """The request's last tokens were not computed after all; their blocks stay its own."""
        request.num_computed_tokens = num_computed_tokens
        while request.chain is not None and not request.chain.listed:
            request.chain, request.num_chained_blocks = request.chain.parent, request.num_chained_blocks - 1

    def release(self, request: Request) -> None:
        """Give up all blocks, the tail first, so that prefixes outlive what follows them, and the state slot."""
        self._release_from(request, 0)
        self.slots.release(request)
        request.chain, request.num_chained_blocks = None, 0
        request.num_computed_tokens = 0

    def _release_from(self, request: Request, first: int) -> None:
        while len(request.block_table) > first:
            self._release(request, request.block_table.pop())
