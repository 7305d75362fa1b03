"""How much may be done at once on a device whose memory is short: less when it failed, and more again later."""

from __future__ import annotations

_FIRST_WAIT, _LONGEST_WAIT = 16, 1024


class MemoryLimit:
    """A limit that is halved when something found no memory, and doubled after it was kept to for a while.

    What took the memory may be gone: another program's, or a rare kind of step. A raised limit that fails again is halved
    again, and twice as long is waited before the next time.

    Args:
        most: where it starts, and ends; None is unlimited.
    """

    def __init__(self, most: int | None) -> None:
        self._start = most
        self.most = most
        self._largest_failed = 0
        self._wait = _FIRST_WAIT
        self._passed = 0
        self._was_raised = False

    def failed(self, size: int) -> None:
        """So much at once found no memory."""
        if self._was_raised:
            self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self.most = max(1, size // 2)
        self._largest_failed = max(self._largest_failed, size)
        self._passed, self._was_raised = 0, False

    def passed(self, size: int) -> None:
        """So much at once went well; it counts where it was more than half of the limit."""
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
