"""The state at the beginning of a recording, needed to understand its first frame.

A bounded recording drops its oldest frames. Their lasting effects are kept here: the live requests and their progress,
the blocks, the knobs, the figures, and the texts so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from roseplay.recording.block_states import BlockStates
from roseplay.recording.frame import BurstFigures, Stats
from roseplay.recording.reader import with_rows
from roseplay.recording.run import Run
from roseplay.recording.schema import Snapshot
from roseplay.recording.state_slots import StateSlots


class InitialState:
    """The state before the first frame that is kept.

    Args:
        knobs: their values at ``t``.
        t: the initial time, in ms of the page's clock.
        absent: what another server does not report at ``t``, with the reasons.
    """

    def __init__(self, knobs: dict[str, Any], t: float, absent: Mapping[str, str] | None = None) -> None:
        self.run = Run(knobs, {"t": t, "requests": [], "absent": dict(absent or {})}, keep_ms=0)
        self._blocks, self._states = BlockStates(), StateSlots()
        self._stats: Stats | None = None  # the newest
        self._burst: BurstFigures | None = None
        self._tabs: dict[int, str] = {}  # by request with words

    def fold(self, frame: dict[str, Any], words: Iterable[tuple[str, list[Any], list[Any], list[Any]]] = ()) -> None:
        """Apply a dropped frame, with its texts as (tab, titles, texts, tenants)."""
        lists: dict[str, list[Any]] = {"titles": [], "texts": [], "tenants": []}
        for tab, *more in words:
            self._tabs.update((request_id, tab) for request_id, _ in more[0])
            for rows, of_tab in zip(lists.values(), more, strict=True):
                rows += of_tab
        whole_frame = with_rows({**frame, **lists})
        self.run.take(whole_frame)
        self._blocks.take(whole_frame["blocks"])
        self._states.take(whole_frame.get("states", ()))
        self._stats = whole_frame.get("stats") or self._stats
        self._burst = whole_frame.get("burst") or self._burst
        self._tabs = {request_id: tab for request_id, tab in self._tabs.items() if request_id in self.run.requests}

    def snapshot(self, may_read: Callable[[str], bool]) -> Snapshot:
        """Returns a snapshot as for a poll, with the words of readable tabs: titles, texts so far, and tenants."""
        run = self.run
        readable = [run.requests[request_id] for request_id, tab in self._tabs.items() if may_read(tab)]
        snapshot: Snapshot = {
            "t": run.t,
            "requests": [(request_id, request.about()) for request_id, request in run.requests.items()],
            "blocks": self._blocks.rows(),
            "blocks_used": self._blocks.used,
            "states": self._states.rows(),
            "stats": self._stats,
            "burst": self._burst,
            "absent": run.absent,
            "words": [(request.request_id, request.title, "".join(request.texts.values())) for request in readable],
            "tenants": [(request.request_id, request.tenant_name) for request in readable if request.tenant_name],
        }
        if run.load:
            snapshot["load"] = run.load
        return snapshot
