"""Wakes coroutines of an event loop from another thread, with one call for all that a step has news for."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque


class Wakeups:
    """Wakes the coroutines of one event loop.

    A call into another thread's loop writes to a socket and wakes that thread, which then competes for the interpreter.
    So the 32 streams that get a token in one step should share one such call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # else ``_of_loops`` would keep every loop
        self._events: deque[asyncio.Event] = deque()
        self._scheduled = False

    def wake(self, event: asyncio.Event) -> None:
        """Set an event of the loop soon; raises ``RuntimeError`` if the loop was closed."""
        self._events.append(event)
        if not self._scheduled:
            self._scheduled = True
            if (loop := self._loop()) is None:
                raise RuntimeError("the event loop is gone")
            loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        self._scheduled = False  # first, so that a later event schedules another call unless the loop below takes it
        while self._events:
            self._events.popleft().set()


_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Wakeups] = weakref.WeakKeyDictionary()


def wakeups() -> Wakeups:
    """Returns the ``Wakeups`` of the running event loop."""
    loop = asyncio.get_running_loop()
    if (instance := _of_loops.get(loop)) is None:
        instance = _of_loops[loop] = Wakeups(loop)
    return instance
