"""What another thread may observe while a function runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def at_each_line(run: Callable[[], Any], look: Callable[[], None]) -> None:
    """Call ``run``, and ``look`` before each line of roseplay's code, as a thread that is scheduled there may do."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            look()
        return trace if "/roseplay/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
