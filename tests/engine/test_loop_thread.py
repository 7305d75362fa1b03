"""An event loop in a thread: what its end leaves time for."""

from __future__ import annotations

import asyncio
import threading

from roseplay.engine.loop_thread import LoopThread


def test_a_cancelled_task_may_clean_up_while_the_loop_ends() -> None:
    begun, cleaning, cleaned, closed = (threading.Event() for _ in range(4))

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            cleaning.set()
            await asyncio.sleep(0.01)
            cleaned.set()

    async def at_end() -> None:
        assert cleaned.is_set()
        closed.set()

    loop = LoopThread("a test's", at_end)
    task = loop.start(work())
    assert begun.wait(10)
    task.cancel()
    assert cleaning.wait(10)
    loop.close(10)
    loop.close(10)
    assert closed.is_set()
