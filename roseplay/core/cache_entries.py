"""What the prefix cache can find: full blocks, the ends of finished prompts, and recurrent states after either."""

from __future__ import annotations

from dataclasses import dataclass

COMMITTED = -1


@dataclass(slots=True, eq=False)
class Node:
    """A full block that can be found.

    Attributes:
        pending_step: the step that computes it, or ``COMMITTED``.
        request_id: who computes it, or did.
        history: hash of all tokens up to its end, once somebody has asked for it.
        logged: whether the cache's log has it as stored.
    """

    parent: Node | None
    tokens: tuple[int, ...]
    block: int
    pending_step: int
    request_id: int
    history: int | None = None
    listed: bool = True
    logged: bool = False


@dataclass(slots=True, eq=False)
class Tail:
    """The end of a finished prompt.

    Attributes:
        parent: node of the full block before, None when the prompt fits one block.
        tokens: the prompt's tokens in ``block``, 1 to block_size of them.
        request_id: whose prompt it was.
        logits_key: names the saved logits; None when they are gone.
        entry_index: while pending, the step entry whose row has the logits.
    """

    parent: Node | None
    tokens: tuple[int, ...]
    block: int
    pending_step: int
    request_id: int
    logits_key: int | None = None
    entry_index: int | None = None


# What is kept at the end of some tokens is found by these: the node of the blocks before, and the tokens behind them.
Key = tuple[Node | None, tuple[int, ...]]
UNKNOWN: Key = (None, ())  # of a state whose last token is not drawn yet; never looked up


@dataclass(slots=True, eq=False)
class KeptState:
    """A copy of the recurrent states after the tokens up to the end of a node or a tail.

    Attributes:
        slot: of the state pool, behind those of requests.
        source: the state slot that it is copied from, at the end of the step ``pending_step``.
        request_id: whose state it was.
        num_tokens: how many these are.
        in_answer: whether its last token was one of that request's answer.
    """

    key: Key
    slot: int
    source: int
    pending_step: int
    request_id: int
    num_tokens: int
    in_answer: bool


@dataclass(slots=True)
class Lookup:
    """Which entries a look-up may use: those of earlier steps, and those of the step being scheduled."""

    step_id: int
    committed: bool
    pending: bool

    def allows(self, entry: Node | Tail | KeptState) -> bool:
        if entry.pending_step == COMMITTED:
            return self.committed
        return self.pending and entry.pending_step == self.step_id


@dataclass(slots=True)
class Match:
    """What a request can attach.

    Attributes:
        first: index in its block table of the first block attached.
        blocks: from there on.
        nodes: of the full blocks among them.
        tail: the end of an equal finished prompt, whose logits serve this one; None when not found.
        end: tokens the request has computed once they are attached.
        num_shared: how many of its new tokens the step being scheduled computes.
        state: of recurrent layers at the end; None for a model without.
    """

    first: int
    blocks: list[int]
    nodes: list[Node]
    tail: Tail | None
    end: int
    num_shared: int
    state: KeptState | None = None


def has_logits(tail: Tail | None, lookup: Lookup) -> bool:
    """Whether the logits after an equal prompt can be had: from a row of this step, or saved ones."""
    if tail is None or tail.entry_index is None:
        return tail is not None and tail.logits_key is not None
    return lookup.pending
