"""What a worker's process and its followers have in common: signals, exit codes, garbage collection."""

from __future__ import annotations

import gc
import os
import signal
import threading
from typing import Any

FOLLOWER_GONE = 78  # exit code of a worker that ends because another process of its group has ended
TERMINATE_S = 5.0  # time from SIGTERM until a worker's process ends itself; its parent usually ends it earlier


def leave_signals_to_parent() -> None:
    """Ignore signals that a terminal or service manager sends to all processes: the parent ends its worker itself.

    SIGTERM is delayed, not ignored: at exit, multiprocessing sends it to daemonic children and waits for them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def end_later(number: int, frame: Any) -> None:
        timer = threading.Timer(TERMINATE_S, os._exit, (128 + number,))
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGTERM, end_later)


def freeze_objects() -> None:
    """Make the garbage collector skip all existing objects, so that it pauses the process for less time, and enable it.

    Frozen objects are never collected, so this is only for a process whose model lives as long as the process itself.
    Such a process disables the collector when it starts: it would look at a million imported objects time and again.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
