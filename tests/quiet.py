"""A machine on which nothing else runs, however busy the one is that runs the tests."""

from __future__ import annotations

from roseplay.traffic.environment import Machine


class QuietMachine(Machine):
    def others_s(self) -> float | None:
        return 0.0
