"""A thread that does the same thing again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Ticker:
    """Calls a function on a thread of its own, from ``start`` to ``close``.

    An exception does not end the thread. Of each type only the first is logged: a lasting fault, even one that only some
    calls have, would otherwise fill the log.

    Args:
        name: of the thread.
        tick: the function.
        every_s: seconds between the end of a call and the next one.
        failure: what the log says of an exception, such as "a frame could not be made".
        at_end: called once on the thread when it ends.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[], object],
        every_s: float,
        failure: str,
        *,
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        self._tick, self._every_s, self._failure, self._at_end = tick, every_s, failure, at_end
        self._logged: set[type[BaseException]] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float = 5.0) -> bool:
        """End the thread after the call in progress; returns whether it has ended. Closing twice is allowed."""
        self._closing.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            self._call(self._tick)
        self._call(self._at_end)

    def _call(self, function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:  # even a panic in an extension
            if type(error) not in self._logged:
                logger.exception(self._failure)
            self._logged.add(type(error))
