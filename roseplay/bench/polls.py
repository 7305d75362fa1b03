"""A tab without a browser, which polls ``/ui/delta`` as a page does and keeps the replies."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import Any
from urllib.parse import urlencode

POLL_S = 0.1  # from one request to the next, as in static/shared/poll.js


class PollingTab(threading.Thread):
    """Polls on one persistent connection until ``close``, with the cursor, boot id, tab id and text lengths of a page.

    Args:
        port: the page server's port on this machine.
        tab: its id; replies include this tab's lanes.
    """

    def __init__(self, port: int, tab: str) -> None:
        super().__init__(daemon=True)
        self.tab = tab
        self._replies: list[bytes] = []
        self._have: dict[int, str] = {}
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._closed = threading.Event()
        self.start()

    def run(self) -> None:
        since, boot, pause = 0, "", 0.0
        while not self._closed.wait(pause):
            asked = time.monotonic()
            query = {"since": since, "boot": boot, "tab": self.tab, "have": ",".join(self._have.values())}
            self._connection.request("GET", f"/ui/delta?{urlencode(query)}")
            body = self._connection.getresponse().read()
            reply = json.loads(body)
            since, boot = reply["next"], reply["boot_id"]
            self._have.update((lane["lane"], lane["have"]) for lane in reply["own"]["lanes"])
            self._replies.append(body)
            pause = max(0.0, asked + POLL_S - time.monotonic())

    def frames(self) -> list[dict[str, Any]]:
        """Returns all frames received so far, without duplicates."""
        found: dict[int, dict[str, Any]] = {}
        for body in list(self._replies):
            found.update((frame["seq"], frame) for frame in json.loads(body)["frames"])
        return [found[number] for number in sorted(found)]

    def close(self) -> None:
        """Stop polling."""
        self._closed.set()
        self.join(30)
        self._connection.close()
