"""Shows a start's progress: in a terminal, one line that changes; in other output, a line now and then."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

from roseplay.engine.ticker import Ticker
from roseplay.play.start_status import StartStatus

LOOK_S = 0.2
AGAIN_S = 10.0  # without a terminal, a long stage is shown again after this time
_BAR = 24
_ERASE = "\r\x1b[K"


class StartConsole:
    """Follows a ``StartStatus`` until ``stop``, and shows it on a stream."""

    def __init__(self, status: StartStatus, stream: TextIO = sys.stderr) -> None:
        self._status, self._stream = status, stream
        self._is_terminal = stream.isatty()
        self._shown = ""  # the stage shown last
        self._waited_s = 0.0
        self._ticker = Ticker("roseplay-console", self.look, LOOK_S, "the start's progress could not be shown")

    def start(self) -> None:
        self._ticker.start()

    def stop(self) -> None:
        """Show no more, and remove the changing line."""
        self._ticker.close()
        if self._is_terminal:
            self._write(_ERASE)

    def say(self, line: str) -> None:
        """Show a permanent line."""
        self._write((_ERASE if self._is_terminal else "") + line + "\n")

    def look(self) -> None:
        """Show changes; called every ``LOOK_S``."""
        if self._status.failure is not None:  # which is reported on another line
            return
        stage, sentence, share = self._status.terminal_line()
        if self._is_terminal:
            room = max(20, shutil.get_terminal_size().columns - 1)
            self._write(_ERASE + f"{_bar(share)} {sentence}"[:room])
            return
        self._waited_s += LOOK_S
        if stage != self._shown or self._waited_s >= AGAIN_S:
            self._shown, self._waited_s = stage, 0.0
            self._write(f"roseplay: {sentence}\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone
            self._ticker.close()


def _bar(share: float | None) -> str:
    full = round((share or 0.0) * _BAR)
    return "[" + "#" * full + "." * (_BAR - full) + "]"
