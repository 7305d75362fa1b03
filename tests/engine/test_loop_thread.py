"""An event loop in a thread: what its end leaves time for."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest

from roseplay.engine.errors import EngineError
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


@pytest.mark.parametrize("left_over", [False, True], ids=["", "cancelled before"])
@pytest.mark.parametrize("swallowed", [0, 2])
def test_what_libraries_do_with_cancellations_keeps_no_task(swallowed: int, left_over: bool) -> None:
    """A scope that ends by a cancellation of its own may leave it counted, or take another one for its own."""
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        if left_over:
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        begun.set()
        for _ in range(swallowed):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def at_end() -> None:
        assert ended.is_set()

    loop = LoopThread("a test's", at_end)
    result = loop.start(work())
    assert begun.wait(10)
    loop.close(10)
    with pytest.raises(CancelledError):
        result.result(0)


def test_what_is_started_after_the_end_never_hangs() -> None:
    async def work() -> None:
        await asyncio.sleep(60)

    closing, go_on = threading.Event(), threading.Event()

    async def at_end() -> None:
        closing.set()
        await asyncio.to_thread(go_on.wait, 10)

    loop = LoopThread("a test's", at_end)
    threading.Thread(target=loop.close, args=(10,)).start()
    assert closing.wait(10)
    with pytest.raises(CancelledError):
        loop.start(work()).result(10)
    go_on.set()
    loop.close(10)
    with pytest.raises(EngineError, match="the engine is closed"):
        loop.start(work())
