"""When the requests of a simulation arrive: at their times, or when earlier ones have got their tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from roseplay.extras.simulation.outcome import SimulatedRequest


class Arrivals:
    """The requests that are still to come.

    Args:
        traffic: in order of arrival.
        start_ns: the beginning, in ns of virtual time.
        clients: if given, as many send one request after the other, each as soon as its last has ended.
        one_by_one: each request is sent at its time, but not before the one before it has got its first token.
    """

    def __init__(
        self,
        traffic: Sequence[SimulatedRequest],
        start_ns: int,
        clients: int | None = None,
        *,
        one_by_one: bool = False,
    ) -> None:
        self.depends_on_ends = clients is not None
        self._traffic, self._start_ns, self._one_by_one = traffic, start_ns, one_by_one and clients is None
        self._sent = 0
        self._due_ns: deque[int] = deque()  # those that are known
        if clients is not None:
            self._due_ns.extend([start_ns] * clients)
        else:
            self._due_ns.extend(map(self._due, traffic[: 1 if self._one_by_one else None]))

    def _due(self, request: SimulatedRequest) -> int:
        return self._start_ns + round(request.at_s * 1e9)

    @property
    def next_ns(self) -> int | None:
        """When the next request arrives; None if that is not known yet, or all have arrived."""
        return self._due_ns[0] if self._due_ns and self._sent < len(self._traffic) else None

    def take(self) -> SimulatedRequest:
        """Returns the request that arrives at ``next_ns``."""
        self._due_ns.popleft()
        self._sent += 1
        return self._traffic[self._sent - 1]

    def note_ended(self, count: int, now_ns: int) -> None:
        """As many requests have ended: their clients send the next ones."""
        if self.depends_on_ends:
            self._due_ns.extend([now_ns] * count)

    def note_first_token(self, now_ns: int) -> None:
        """A request has got its first token, or was refused: the next one may be sent."""
        if self._one_by_one and self._sent < len(self._traffic):
            self._due_ns.append(max(now_ns, self._due(self._traffic[self._sent])))
