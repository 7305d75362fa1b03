"""The user's own traffic from a file, played on the running engine at the file's arrival times."""

from __future__ import annotations

from collections.abc import Callable

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.formats.text import shown
from roseplay.play.open_loop import OpenLoop, Send
from roseplay.traffic.own import parse_traffic
from roseplay.traffic.own_traffic import MAX_NAME, OwnTraffic


def read_own(content: bytes, name: str) -> OwnTraffic:
    """Read a file in the format of ``traffic.own``; raises ``ValueError`` with a sentence that names the line."""
    if len(name) > MAX_NAME:
        raise ValueError(f"the name of the traffic is {shown(name)}: use at most {MAX_NAME} characters")
    return OwnTraffic(name, tuple(parse_traffic(content)))


class FileTraffic(OpenLoop):
    """Traffic that a tab plays from a file. It ends when all requests have been sent.

    Args:
        seed: for prompts that are given by their lengths.
        is_watched: returns whether the tab is still open; once it is not, the traffic ends.
        clock: the engine's.
    """

    def __init__(
        self, file: OwnTraffic, seed: int, send: Send, is_watched: Callable[[], bool], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__("roseplay-own", is_watched, clock)
        self._file, self._seed, self._sender = file, seed, send

    def figures(self) -> dict[str, object]:
        """Returns the loop's figures with the file's and the seed."""
        return {**super().figures(), **self._file.figures(), "seed": self._seed}

    def _due(self) -> float | None:
        requests = self._file.requests
        return requests[self._sent].arrival_s if self._sent < len(requests) else None

    def _send(self) -> Send:
        return self._sender
