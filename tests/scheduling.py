"""Distributes files of tests among processes: open pages draw all the time, so only as many processes as there are cores
get browser tests. The others have ended by then, since browser tests come last."""

from __future__ import annotations

import os

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_BROWSER = "/browser/"  # in the path of each file of browser tests


class PagesOnCores(LoadFileScheduling):
    """``--dist loadfile``, with browser tests in at most as many processes as there are cores."""

    def _reschedule(self, node: WorkerController) -> None:
        """Called by xdist when a process has almost nothing left to do."""
        if not node.shutting_down and self._next_is_of_browser() and self._with_pages(node) >= (os.cpu_count() or 1):
            node.shutdown()  # after its last tests
        else:
            super()._reschedule(node)

    def _next_is_of_browser(self) -> bool:
        return bool(self.workqueue) and _BROWSER in next(iter(self.workqueue))

    def _with_pages(self, without: WorkerController) -> int:
        """Returns how many other processes have browser tests left and take more."""
        return sum(
            any(_BROWSER in scope and not all(tests.values()) for scope, tests in files.items())
            for node, files in self.assigned_work.items()
            if node is not without and not node.shutting_down
        )
