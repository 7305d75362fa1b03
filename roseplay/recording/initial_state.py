"""The state at the beginning of a recording, needed to understand its first frame.

A bounded recording drops its oldest frames. Their lasting effects are kept here: the live requests and their progress,
the blocks, the knobs, the figures, and the texts so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from roseplay.recording.block_states import BlockStates
from roseplay.recording.reader import with_rows
from roseplay.recording.run import Run
from roseplay.recording.state_slots import StateSlots


class InitialState:
    """The state before the first frame that is kept.

    Args:
        knobs: their values at ``t``.
        t: the initial time, in ms of the page's clock.
        absent: what another server does not report at ``t``, with the reasons.
    """

    def __init__(self, knobs: dict[str, Any], t: float, absent: Mapping[str, str] | None = None) -> None:
        self.run = Run(knobs, {"t": t, "absent": absent or {}}, keep_ms=0)
        self._blocks, self._states = BlockStates(), StateSlots()
        self._figures: dict[str, Any] = {"stats": None, "burst": None}  # the newest of each
        self._tabs: dict[int, str] = {}  # by request with words

    def fold(self, frame: dict[str, Any], words: Iterable[tuple[str, list[Any], list[Any], list[Any]]] = ()) -> None:
        """Apply a dropped frame, with its texts as (tab, titles, texts, tenants)."""
        lists: dict[str, list[Any]] = {"titles": [], "texts": [], "tenants": []}
        for tab, *more in words:
            self._tabs.update((request_id, tab) for request_id, _ in more[0])
            for rows, of_tab in zip(lists.values(), more, strict=True):
                rows += of_tab
        self.run.take(with_rows({**frame, **lists}))
        self._blocks.take(frame["blocks"])
        self._states.take(frame.get("states", ()))
        self._figures = {name: frame.get(name) or figures for name, figures in self._figures.items()}
        self._tabs = {request_id: tab for request_id, tab in self._tabs.items() if request_id in self.run.requests}

    def snapshot(self, may_read: Callable[[str], bool]) -> dict[str, Any]:
        """Returns a snapshot as for a poll, with the words of readable tabs.

        These are ``words``, ``[request id, title, text so far]``, and ``tenants``, ``[request id, tenant]``.
        """
        run = self.run
        readable = [run.requests[request_id] for request_id, tab in self._tabs.items() if may_read(tab)]
        return {
            "t": run.t,
            "requests": [[request_id, request.about()] for request_id, request in run.requests.items()],
            **self._blocks.snapshot(),
            "states": self._states.rows(),
            **self._figures,
            "absent": run.absent,
            **({"load": run.load} if run.load else {}),
            "words": [[request.request_id, request.title, "".join(request.texts.values())] for request in readable],
            "tenants": [[request.request_id, request.tenant_name] for request in readable if request.tenant_name],
        }
