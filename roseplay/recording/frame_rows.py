"""The columns of a frame's rows. As there are many rows, JSON holds them as lists, and their column names once.

A snapshot and a recording's header carry ``COLUMNS``; readers find a value by its column's name. Names are those of
the engine's records; times are milliseconds of the page's clock (``frames.PageTime``).
"""

from __future__ import annotations

from typing import NamedTuple

from roseplay.engine.messages import EntryRecord


class StepRow(NamedTuple):
    """One step, as in ``StepRecord``; block counts are taken after it. ``device_ms`` and ``host_ms`` are durations.

    ``graph``: whether the step was replayed (as a CUDA graph, or on a CPU from its recording) rather than computed
    eagerly; ``None`` if there was no choice or it is unknown. ``limit``: see ``step_limit``; ``None`` in recordings
    that lack it. ``state_slots`` and ``states_kept``: 0 for a model without recurrent layers.
    ``recomputed_tokens``, ``swapped_out``, ``swapped_in``: for preempted requests; the latter in blocks.
    ``draft_tokens``: how many of the decode tokens are drafts, of which ``accepted_tokens`` were right.
    """

    step_id: int
    t0: float
    t1: float
    prompt_tokens: int
    decode_tokens: int
    cached_tokens: int
    shared_tokens: int
    running: int
    waiting: int
    blocks_free: int
    blocks_cached: int
    blocks_active: int
    blocks_shared: int
    device_ms: float
    host_ms: float
    block_copies: int
    entries: list[EntryRecord]
    preempted: list[int]
    copied: list[int]
    graph: bool | None = None
    limit: str | None = None
    state_slots: int = 0
    states_kept: int = 0
    recomputed_tokens: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0


class TokenRow(NamedTuple):
    """One token as it was published; ``itl_ms`` is ``None`` for a request's first token, 0 for
    one that arrived together with the one before.

    ``step_id``: the step that made it. Another server does not report its steps: there, tokens that arrived together
    share a number.
    """

    request_id: int
    t: float
    itl_ms: float | None
    step_id: int


# Recordings without column names have exactly these, in this order.
COLUMNS: dict[str, list[str]] = {
    "steps": list(StepRow._fields),
    "entries": list(EntryRecord._fields),
    "tokens": list(TokenRow._fields),
}
