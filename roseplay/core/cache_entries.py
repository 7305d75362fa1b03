"""Entries of the prefix cache: full blocks, the ends of finished prompts, and recurrent states kept after either."""

from __future__ import annotations

from dataclasses import dataclass

from roseplay.core.cache_events import block_hash

COMMITTED = -1
SAVED_LOGITS_BYTES = 64 * 2**20  # of all saved logits, by default


@dataclass(slots=True, eq=False)
class Node:
    """A full block that can be found."""

    parent: Node | None
    tokens: tuple[int, ...]
    block: int
    pending_step: int  # the step that computes it, or ``COMMITTED``
    request_id: int  # the request that computes it, or did
    history: int | None = None  # hash of all tokens up to its end; None until it is first needed
    listed: bool = True  # whether it can still be found
    logged: bool = False  # whether the cache's log has reported it as stored


@dataclass(slots=True, eq=False)
class Tail:
    """The end of a finished prompt."""

    parent: Node | None  # node of the full block before, None when the prompt fits in one block
    tokens: tuple[int, ...]  # the prompt's 1 to block_size tokens in ``block``
    block: int
    pending_step: int
    request_id: int  # the request whose prompt it was
    logits_key: int | None = None  # key of the saved logits; None when none are saved
    entry_index: int | None = None  # while pending, the step entry whose row has the logits


# An entry's key: the node of the block before it, and its own tokens.
Key = tuple[Node | None, tuple[int, ...]]
UNKNOWN: Key = (None, ())  # for a state whose last token has not been drawn yet; never looked up


@dataclass(slots=True, eq=False)
class KeptState:
    """A copy of the recurrent states after all tokens up to the end of a node or a tail."""

    key: Key
    slot: int  # its slot in the state pool, numbered after those of requests
    source: int  # the state slot that it is copied from, at the end of the step ``pending_step``
    pending_step: int
    request_id: int  # the request whose state it was
    num_tokens: int  # number of tokens that the state covers
    in_answer: bool  # whether the last of them belongs to that request's answer


@dataclass(slots=True)
class Lookup:
    """Which entries a look-up may use."""

    step_id: int  # the step being scheduled
    committed: bool  # it may use entries of earlier steps
    pending: bool  # it may use entries of the step being scheduled

    def allows(self, entry: Node | Tail | KeptState) -> bool:
        if entry.pending_step == COMMITTED:
            return self.committed
        return self.pending and entry.pending_step == self.step_id


@dataclass(slots=True)
class Match:
    """Cached blocks that a request can attach."""

    first: int  # index in the request's block table of the first block to attach
    blocks: list[int]  # the blocks to attach from there on
    nodes: list[Node]  # the nodes of the full blocks among them
    tail: Tail | None  # the end of an identical finished prompt, whose logits the request can use; None when not found
    end: int  # the request's number of computed tokens once the blocks are attached
    num_shared: int  # how many of the attached tokens the step being scheduled computes
    state: KeptState | None = None  # the recurrent state kept at ``end``; None for a model without recurrent layers


def has_logits(tail: Tail | None, lookup: Lookup) -> bool:
    """Returns whether the logits after an identical prompt are available, saved or from a row of this step."""
    if tail is None or tail.entry_index is None:
        return tail is not None and tail.logits_key is not None
    return lookup.pending


def history_of(node: Node | None) -> int:
    """Returns the hash of all tokens up to the end of a block, 0 for None; each node is hashed only once."""
    chain = []
    while node is not None and node.history is None:
        chain.append(node)
        node = node.parent
    history = 0 if node is None or node.history is None else node.history
    for node in reversed(chain):
        history = node.history = block_hash(history, node.tokens)
    return history
