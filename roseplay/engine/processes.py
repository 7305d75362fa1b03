"""What a worker's process and its followers have in common: signals, exit codes, garbage collection."""

from __future__ import annotations

import gc
import os
import signal
import threading
from typing import Any

FOLLOWER_GONE = 78  # exit code of a worker that ends because another process of its group did
TERMINATE_S = 5.0  # from SIGTERM until a worker's process ends by itself; its parent usually ends it before


def leave_signals_to_parent() -> None:
    """Ignore signals that a terminal or a service manager sends to all processes: the parent ends its worker itself.

    SIGTERM is delayed, not ignored: at the end of a program multiprocessing sends it to children and waits for them.
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
    """Have the garbage collector skip the objects that there are now, so that it stops the process for less time.

    Only where they last as long as the process: frozen objects are never collected, as a model in a thread must be.
    """
    gc.collect()
    gc.freeze()
