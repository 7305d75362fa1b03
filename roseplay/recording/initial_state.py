"""The state in which a recording begins: what is needed to understand its first frame.

A bounded recording drops its oldest frames. What still matters of them is kept here: which requests are alive and how
far they are, the blocks, the knobs, the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from roseplay.recording.frame_rows import EntryRow, StepRow, TokenRow

_FREE = [0, -1, 0]


class InitialState:
    """The state before the first frame that is kept.

    Args:
        knobs: at that time.
        t: that time, in ms of the page's clock.
    """

    def __init__(self, knobs: dict[str, Any], t: float) -> None:
        self.knobs = dict(knobs)
        self.t = t
        self._requests: dict[int, dict[str, Any]] = {}
        self._words: dict[int, list[Any]] = {}  # request -> [tab, title, text]
        self._blocks: dict[int, list[int]] = {}
        self._stats: dict[str, Any] | None = None
        self._burst: dict[str, Any] | None = None

    def fold(self, frame: dict[str, Any], words: Iterable[tuple[str, list[Any], list[Any]]] = ()) -> None:
        """Apply a frame that is dropped; its texts as (tab, titles, texts)."""
        self.t = frame["t"]
        events: dict[str, Callable[..., None]] = {"submitted": self._submitted, "finished": self._finished}
        for request_id, kind, t, about in frame["requests"]:
            events.get(kind, self._progressed)(request_id, kind, t, about)
        for row in frame["steps"]:
            self._step(StepRow(*row))
        for token in frame["tokens"]:
            known = self._requests.get(TokenRow(*token).request_id)
            if known:
                known["tokens"] += 1
        for _, _, changes in frame["knobs"]:
            self.knobs.update({name: new for name, (_, new) in changes.items()})
        for block, *state in frame["blocks"]:
            self._blocks[block] = state
            if state == _FREE:
                del self._blocks[block]
        self._stats = frame["stats"] or self._stats
        self._burst = frame["burst"] or self._burst
        for tab, titles, texts in words:
            self._fold_words(tab, titles, texts)

    def _submitted(self, request_id: int, _: str, t: float, about: dict[str, Any]) -> None:
        times = dict.fromkeys(("scheduled", "first", "finished"))
        progress = dict.fromkeys(("computed", "target", "cached", "shared", "tokens"), 0)
        self._requests[request_id] = {**about, "submitted": t, **times, **progress}

    def _progressed(self, request_id: int, kind: str, t: float, about: dict[str, Any]) -> None:
        if request_id in self._requests:
            self._requests[request_id].update({kind: t, **about})

    def _finished(self, request_id: int, *_: Any) -> None:
        self._requests.pop(request_id, None)
        self._words.pop(request_id, None)

    def _step(self, step: StepRow) -> None:
        for entry in (EntryRow(*row) for row in step.entries):
            known = self._requests.get(entry.request_id)
            if known:
                progress = ("computed", "target", "cached", "shared")
                known.update({name: getattr(entry, name) for name in progress})

    def _fold_words(self, tab: str, titles: list[Any], texts: list[Any]) -> None:
        for request_id, title in titles:
            if request_id in self._requests:
                self._words[request_id] = [tab, title, ""]
        for request_id, _, text in texts:
            if request_id in self._words:
                self._words[request_id][2] += text

    def snapshot(self, may_read: Callable[[str], bool]) -> dict[str, Any]:
        """Returns a poll's snapshot, with ``words``: ``[request id, title, text so far]`` of readable tabs."""
        words = [[rid, title, text] for rid, (tab, title, text) in self._words.items() if may_read(tab)]
        return {
            "t": self.t,
            "requests": [[request_id, known] for request_id, known in self._requests.items()],
            "blocks": [[block, *state] for block, state in sorted(self._blocks.items())],
            "stats": self._stats,
            "burst": self._burst,
            "words": words,
        }
