"""A browser tab without the browser: it polls as the page does, and reads the answers in its lanes."""

from __future__ import annotations

import random
from typing import Any

from tests.suites.soak.client import Poller
from tests.suites.soak.journal import Journal

VISIBLE_S, HIDDEN_S = 0.1, 1.0  # approximately as in shared/poll.js
_ENDED = ("done", "stopped", "error")


class Tab(Poller):
    """A tab from its opening to ``close``."""

    def __init__(self, port: int, journal: Journal, seeded: random.Random) -> None:
        self.tab_id = f"soak-{seeded.getrandbits(64):016x}"
        super().__init__(self.tab_id, port, journal, VISIBLE_S)
        self._have: dict[int, str] = {}
        self._turns: dict[int, list[int]] = {}  # request id -> tokens and characters read so far
        self._ended: set[int] = set()
        self.waiting: set[int] = set()  # lanes whose newest answer has not ended
        self.blocks: list[int] = []
        self.start()

    def query(self) -> dict[str, str]:
        return {"tab": self.tab_id, "have": ",".join(self._have.values())}

    def take(self, delta: dict[str, Any]) -> None:
        for lane in delta["own"]["lanes"]:
            self._take_lane(lane)
        self.blocks = [block[0] for frame in delta["frames"] for block in frame["blocks"]] or self.blocks

    def _take_lane(self, lane: dict[str, Any]) -> None:
        self._have[lane["lane"]] = lane["have"]
        for turn in lane["turns"]:
            request_id = turn["rid"]
            read = self._turns.setdefault(request_id, [0, 0])
            if turn["tokens_from"] not in (0, read[0]) or turn["text_from"] not in (0, read[1]):
                self._journal.complain(f"a poll skipped a part of the answer {request_id}")
            read[0] = turn["tokens_from"] + len(turn["widths"])
            read[1] = turn["text_from"] + len(turn["text"])
            newest = request_id == lane["rid"]
            if newest and lane.get("state") in _ENDED and request_id not in self._ended:
                self._ended.add(request_id)
                self._journal.read[request_id] = read[0], lane["reason"]
                if read[0] != lane["tokens"]:
                    self._journal.complain(
                        f"request {request_id}: {read[0]} tokens read, its lane has {lane['tokens']}"
                    )
        (self.waiting.discard if lane.get("state") in (None, *_ENDED) else self.waiting.add)(lane["lane"])
