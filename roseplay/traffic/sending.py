"""Sends requests when they are due, whether or not earlier ones have been answered (an open loop)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from roseplay.clock import Clock

LOOK_S = 0.25  # the longest wait between two calls of ``due_s`` and ``limit``


def send_when_due(
    clock: Clock,
    stopping: threading.Event,
    due_s: Callable[[], float | None],
    send: Callable[[int], object],
    *,
    start_ns: int,
    limit: Callable[[], str | None],
) -> str | None:
    """Send each request at its time, late ones at once, on the calling thread; returns why ``limit`` ended it, if it did.

    Args:
        clock: in whose time requests are due; it may be virtual.
        stopping: ends the sending.
        due_s: returns when the next request is due, in seconds after ``start_ns``; ``None`` if there are no more. The
            time may change while it is waited for.
        send: sends the next request; its argument is when that was due, in ns.
        limit: returns why no more may be sent; ``None`` while they may.
    """
    while not stopping.is_set():
        reason, at_s = limit(), due_s()
        if reason is not None or at_s is None:
            return reason
        due_ns = start_ns + round(at_s * 1e9)
        wait_s = (due_ns - clock.now_ns()) / 1e9
        if wait_s > 0:
            clock.wait(stopping, min(wait_s, LOOK_S))
        else:
            send(due_ns)
    return None
