"""Slow motion: stretches a step in time, and keeps the commands that arrive during the wait."""

from __future__ import annotations

from typing import Protocol

from roseplay.clock import Clock
from roseplay.engine.messages import Command, End, SetKnobs, Shutdown


class Inbox(Protocol):
    """The source of a worker's commands."""

    def take(self, timeout: float | None) -> list[Command]:
        """Returns all commands that have arrived; waits up to ``timeout`` seconds (``None``: forever) for the first."""


def stretch(inbox: Inbox, factor: float, start_ns: int, took_ns: int, clock: Clock) -> list[Command]:
    """Wait until ``factor`` times as long as a step took has passed since its start; returns the commands that arrived.

    A client that ends a request, a shutdown or a smaller factor shortens the wait.
    """
    pending: list[Command] = []
    while True:
        for command in pending:
            if isinstance(command, SetKnobs):
                factor = command.knobs.slow_motion
            elif isinstance(command, End | Shutdown):
                factor = 1.0
        left = start_ns + took_ns * factor - clock.now_ns()
        if left <= 0 or factor == 1.0:
            return pending
        pending += inbox.take(left / 1e9)
