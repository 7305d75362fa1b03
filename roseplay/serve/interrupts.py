"""Handles signals that end a program while it starts, before its server handles them."""

from __future__ import annotations

import signal
from types import FrameType


class Interrupts:
    """Raises ``KeyboardInterrupt`` on SIGINT and SIGTERM, and remembers that one came.

    Python drops an exception that is raised in a finaliser or in a C library's callback: an interrupt at such a moment
    is only remembered, and ``check`` or the server acts on it later.
    """

    def __init__(self) -> None:
        self.came = False

    def handle(self) -> None:
        """Handle the signals from now on. Call this on the main thread. An ignored signal stays ignored."""
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._interrupt)

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if a signal has come."""
        if self.came:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt
