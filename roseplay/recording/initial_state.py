"""The state at the beginning of a recording, needed to understand its first frame.

A bounded recording drops its oldest frames. Their lasting effects are kept here: the live requests and their progress,
the blocks, the knobs, the figures, and the texts so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from roseplay.recording.reader import with_rows
from roseplay.recording.run_state import RunState


class InitialState:
    """The state before the first frame that is kept.

    Args:
        knobs: their values at ``t``.
        t: the initial time, in ms of the page's clock.
        absent: what another server does not report at ``t``, with the reasons.
    """

    def __init__(self, knobs: dict[str, Any], t: float, absent: Mapping[str, str] | None = None) -> None:
        self._absent = dict(absent or {})
        self._load: dict[str, Any] | None = None
        self.state = RunState({"t": t}, knobs, history=False)
        self._words: dict[int, list[Any]] = {}  # request -> [tab, title, text, tenant]

    def fold(self, frame: dict[str, Any], words: Iterable[tuple[str, list[Any], list[Any], list[Any]]] = ()) -> None:
        """Apply a dropped frame, with its texts as (tab, titles, texts, tenants)."""
        self.state.take(with_rows(frame))
        self._absent = frame.get("absent", self._absent)
        self._load = (frame.get("loads") or [self._load])[-1]
        for tab, titles, texts, tenants in words:
            named = dict(tenants)
            for request_id, title in titles:
                self._words[request_id] = [tab, title, "", named.get(request_id)]
            for request_id, _, text in texts:
                if request_id in self._words:
                    self._words[request_id][2] += text
        for request_id in self._words.keys() - self.state.requests.keys():
            del self._words[request_id]

    def snapshot(self, may_read: Callable[[str], bool]) -> dict[str, Any]:
        """Returns a snapshot as for a poll, with the words of readable tabs.

        These are ``words``, ``[request id, title, text so far]``, and ``tenants``, ``[request id, tenant]``.
        """
        state, readable = self.state, {rid: about for rid, (tab, *about) in self._words.items() if may_read(tab)}
        return {
            "t": state.t,
            "requests": [[request_id, request.about()] for request_id, request in state.requests.items()],
            **state.blocks.snapshot(),
            "states": state.states.rows(),
            "stats": state.stats,
            "burst": state.burst,
            "absent": self._absent,
            **({"load": self._load} if self._load else {}),
            "words": [[rid, title, text] for rid, (title, text, _) in readable.items()],
            "tenants": [[rid, tenant] for rid, (*_, tenant) in readable.items() if tenant is not None],
        }
