"""What another thread may observe while a function runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
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


def beside_each_line(run: Callable[[], Any], look: Callable[[], None]) -> None:
    """Do the same with ``look`` on another thread, which may have to wait until ``run`` gives up a lock."""
    calls: list[Future[None]] = []

    def call() -> None:
        if not calls or calls[-1].done():
            calls.append(pool.submit(look))
            wait(calls[-1:], 0.1)

    with ThreadPoolExecutor(1) as pool:
        at_each_line(run, call)
    for each in calls:
        each.result()
