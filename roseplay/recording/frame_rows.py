"""The columns of a frame's rows: there are many rows, so JSON holds them as lists.

Times are milliseconds of the page's clock (``frames.PageTime``).
"""

from __future__ import annotations

from typing import NamedTuple


class EntryRow(NamedTuple):
    """One request's part in a step; the columns mean what they mean in ``EntryRecord``."""

    request_id: int
    prompt: int
    decode: int
    computed: int
    target: int
    cached: int
    shared: int


class StepRow(NamedTuple):
    """One step; block counts are taken after it. ``device_ms`` and ``host_ms`` are durations.

    ``graph``: whether the step was replayed (as a CUDA graph, or on a CPU from its recording) rather than computed
    eagerly; ``None`` where there was no choice or it is not known.
    """

    step: int
    t0: float
    t1: float
    prompt: int
    decode: int
    cached: int
    shared: int
    running: int
    waiting: int
    blocks_free: int
    blocks_cached: int
    blocks_active: int
    blocks_shared: int
    device_ms: float
    host_ms: float
    copies: int
    entries: list[EntryRow]
    preempted: list[int]
    copied: list[int]
    graph: bool | None = None


class TokenRow(NamedTuple):
    """One token as it was published; ``itl_ms`` is ``None`` for a request's first token."""

    request_id: int
    t: float
    itl_ms: float | None
    step: int
