"""A browser tab without the browser: it polls as the page does, and reads the answers in its lanes."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from typing import Any
from urllib.parse import urlencode

from tests.suites.soak.client import TIMEOUT_S
from tests.suites.soak.journal import Journal

_VISIBLE_S, _HIDDEN_S = 0.1, 1.0  # approximately as in shared/poll.js
_ENDED = ("done", "stopped", "error")


class Tab(threading.Thread):
    """A tab from its opening to ``close``; ``hidden`` may be set at any time."""

    def __init__(self, port: int, journal: Journal, seeded: random.Random) -> None:
        self.tab_id = f"soak-{seeded.getrandbits(64):016x}"
        super().__init__(name=self.tab_id, daemon=True)
        self._journal = journal
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self._closed = threading.Event()
        self._have: dict[int, str] = {}
        self._turns: dict[int, list[int]] = {}  # request id -> tokens and characters read so far
        self._ended: set[int] = set()
        self.hidden = False
        self.waiting: set[int] = set()  # lanes whose newest answer has not ended
        self.blocks: list[int] = []
        self.start()

    def run(self) -> None:
        since, boot, pause = 0, "", 0.0
        while not self._closed.wait(pause):
            asked = time.monotonic()
            query = {"since": since, "boot": boot, "tab": self.tab_id, "have": ",".join(self._have.values())}
            try:
                self._connection.request(
                    "GET", f"/ui/delta?{urlencode(query)}", headers={"Accept-Encoding": "identity"}
                )
                reply = self._connection.getresponse()
                body = reply.read()
                self._journal.answered("GET", "/ui/delta", reply.status, body)
                delta = json.loads(body)
                since, boot = delta["next"], delta["boot_id"]
                for lane in delta["own"]["lanes"]:
                    self._take(lane)
                self.blocks = [block[0] for frame in delta["frames"] for block in frame["blocks"]] or self.blocks
            except Exception as error:
                self._journal.complain(f"a tab's poll: {type(error).__name__}: {error}")
                self._connection.close()
                pause = 1.0
                continue
            pause = max(0.0, asked + (_HIDDEN_S if self.hidden else _VISIBLE_S) - time.monotonic())

    def _take(self, lane: dict[str, Any]) -> None:
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
                self._journal.finished_reading(request_id, read[0], lane["reason"], read[1])
                if read[0] != lane["tokens"]:
                    self._journal.complain(
                        f"the lane of request {request_id} gave {read[0]} tokens and counts {lane['tokens']}"
                    )
        (self.waiting.discard if lane.get("state") in (None, *_ENDED) else self.waiting.add)(lane["lane"])

    def close(self) -> None:
        """Leave without notice, as a closed tab does."""
        self._closed.set()
        self.join(TIMEOUT_S + 10)
        self._connection.close()
