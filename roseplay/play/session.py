"""Tabs of browsers (``tab.py`` has those of the page): which requests belong to each, and how long it is kept.

A request belongs to the engine, not to a page event: closing or reloading a page loses nothing. Each tab holds a lease
that any poll renews; when it expires, the tab's requests are aborted and the tab is forgotten.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from roseplay.play.answer_settings import TabSettings
from roseplay.play.lanes import Lane, parse_seen
from roseplay.play.open_loop import OpenLoop
from roseplay.recording.request_registry import TrackedRequest
from roseplay.recording.schema import MAX_LANES

DEFAULT_LANES = 4  # that a tab shows at first
LEASE_S = 300.0  # browsers throttle hidden pages to one poll a minute
_TAB_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")


class Playing(Protocol):
    def end(self) -> None:
        """End it and wait until everything is restored; does nothing if the demo itself calls it."""


class Tab:
    """One tab of one browser: its lanes, settings and unfinished requests."""

    def __init__(self, tab_id: str, now: float) -> None:
        self.tab_id = tab_id
        self.lanes: dict[int, Lane] = {}
        self.settings = TabSettings()
        self.traffic: dict[str, OpenLoop] = {}  # the newest of each kind, which may have ended
        self.demo: Playing | None = None  # the last one that was played in it
        self.last_seen = now
        self._lock = threading.Lock()
        self._requests: list[TrackedRequest] = []
        self._put_aside: dict[int, Lane] | None = None

    def put_lanes_aside(self) -> None:
        """Show empty lanes, for a demo, until ``put_lanes_back``. Answers in the tab's own lanes go on."""
        with self._lock:
            if self._put_aside is None:
                self._put_aside, self.lanes = self.lanes, _cleared(self.lanes)

    def put_lanes_back(self) -> None:
        with self._lock:
            if self._put_aside is not None:
                for lane in self._put_aside.values():
                    lane.chat.send_again()
                self.lanes, self._put_aside = {**_cleared(self.lanes), **self._put_aside}, None

    def end_demo(self) -> None:
        """End the demo that is playing here, if any, because the tab is used for something else."""
        if self.demo is not None:
            self.demo.end()

    def take_traffic(self, kind: str, loop: OpenLoop) -> None:
        """Replace the tab's traffic of this kind, which sends no more."""
        with self._lock:
            before = self.traffic.get(kind)
            self.traffic = {**self.traffic, kind: loop}
        if before is not None:
            before.stop()

    def lane(self, number: int) -> Lane:
        """Returns lane ``number``, created on first use; raises ``ValueError`` if there is no such lane."""
        check_lane(number)
        return self.lanes.setdefault(number, Lane(number))

    def add(self, tracked: TrackedRequest) -> None:
        with self._lock:
            self._requests = [*self.unfinished(), tracked]

    def unfinished(self) -> list[TrackedRequest]:
        return [tracked for tracked in self._requests if not tracked.finished]

    def leave_engine(self) -> None:
        """Keep chats without their requests, because the engine has ended, and have pages fetch them again."""
        self.traffic = {}
        for lane in list(self.lanes.values()):
            with lane.chat.lock:
                for turn in lane.chat.turns:
                    turn.settle()
            lane.chat.send_again()

    def find(self, request_id: int) -> TrackedRequest | None:
        """Returns the request of a turn in one of its lanes; ``None`` if another turn has followed."""
        turns = (turn for lane in list(self.lanes.values()) for turn in lane.chat.turns)
        return next((turn.tracked for turn in turns if turn.request_id == request_id), None)

    def updates(self, have: str, now_ns: int, ms: Callable[[int], float]) -> list[dict[str, object]]:
        """Returns the parts of its lanes that this tab lacks, see ``lanes.parse_seen`` and ``Lane.update``."""
        seen = parse_seen(have)
        updates = (lane.update(seen.get(lane.number), now_ns, ms) for lane in list(self.lanes.values()))
        return [lane for lane in updates if lane is not None]


def _cleared(numbers: Iterable[int]) -> dict[int, Lane]:
    """Returns empty lanes; pages that show something in their places clear it."""
    lanes = {number: Lane(number) for number in numbers}
    for lane in lanes.values():
        lane.chat.clear()
    return lanes


def check_lane(number: int, least: int = 1) -> None:
    """Raises ``ValueError`` if there is no such lane."""
    if not least <= number <= MAX_LANES:
        raise ValueError(f"there is no lane {number}: lanes are numbered 1 to {MAX_LANES}")


def check_tab_id(tab_id: Any) -> str:
    """Returns the tab's ID; raises ``ValueError`` if it is invalid."""
    if not isinstance(tab_id, str) or not _TAB_ID.fullmatch(tab_id):
        raise ValueError("a tab's id is 8 to 64 letters, digits, - or _")
    return tab_id


class Tabs:
    """All tabs by ID. A tab is known from its first request on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tabs: dict[str, Tab] = {}

    def __len__(self) -> int:
        return len(self._tabs)

    def open(self, tab_id: str) -> Tab:
        """Returns the tab, created if it is new; raises ``ValueError`` for an invalid ID."""
        check_tab_id(tab_id)
        with self._lock:
            tab = self._tabs.setdefault(tab_id, Tab(tab_id, self._clock()))
            tab.last_seen = self._clock()
            return tab

    def get(self, tab_id: str) -> Tab | None:
        return self._tabs.get(tab_id)

    def all(self) -> list[Tab]:
        with self._lock:
            return list(self._tabs.values())

    def renew(self, tab_id: str) -> Tab | None:
        """Returns the tab with its lease renewed; ``None`` if it is unknown."""
        if (tab := self._tabs.get(tab_id)) is not None:
            tab.last_seen = self._clock()
        return tab

    def leave_engine(self) -> None:
        """Have all tabs keep the texts in their lanes, because the engine has ended."""
        for tab in self.all():
            tab.leave_engine()

    def expire(self) -> list[TrackedRequest]:
        """Forget the tabs whose lease has expired; returns their unfinished requests."""
        limit = self._clock() - LEASE_S
        with self._lock:
            gone = [tab for tab in self._tabs.values() if tab.last_seen < limit]
            for tab in gone:
                del self._tabs[tab.tab_id]
        return [tracked for tab in gone for tracked in tab.unfinished()]
