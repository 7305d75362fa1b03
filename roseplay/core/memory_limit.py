"""A limit on the size of a step that adapts to the memory which a device turns out to have."""

from __future__ import annotations

_FIRST_WAIT, _LONGEST_WAIT = 16, 1024


class MemoryLimit:
    """A limit that is halved when memory runs out, and doubled again after a while without failures.

    The shortage may be temporary: another program's memory, or a rare kind of step. When a raised limit fails, it is
    halved again, and the wait before the next attempt doubles.

    Args:
        most: the initial limit, which is not exceeded later either; None is unlimited.

    Attributes:
        most: the current limit.
    """

    def __init__(self, most: int | None) -> None:
        self._start = most
        self.most = most
        self._largest_failed = 0
        self._wait = _FIRST_WAIT
        self._passed = 0
        self._was_raised = False

    def failed(self, size: int) -> None:
        """Record that there was no memory for a step of ``size`` tokens."""
        if self._was_raised:
            self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self.most = max(1, size // 2)
        self._largest_failed = max(self._largest_failed, size)
        self._passed, self._was_raised = 0, False

    def passed(self, size: int) -> None:
        """Record that a step of ``size`` tokens succeeded; it counts if it was larger than half of the limit."""
        if self.most is None or self.most == self._start or 2 * size <= self.most:
            return
        self._passed += 1
        if self._passed < self._wait:
            return
        self._passed, self._was_raised = 0, True
        if self.most >= (self._start or self._largest_failed):
            self.most, self._wait = self._start, _FIRST_WAIT
        else:
            self.most = min(2 * self.most, self._start or 2 * self.most)
