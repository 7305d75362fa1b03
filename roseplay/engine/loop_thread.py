"""An event loop in a thread of its own, for code that is not itself asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from roseplay.engine.errors import EngineError

T = TypeVar("T")
_ATTEMPTS, _EACH_S = 10, 0.2  # to cancel the tasks that are left, each with time for them to clean up and end


class LoopThread:
    """A thread that runs an event loop until ``close``.

    Args:
        name: of the thread.
        at_end: awaited on the loop once all tasks have been cancelled and have ended; closes what belongs to the loop.
    """

    def __init__(self, name: str, at_end: Callable[[], Awaitable[None]] | None = None) -> None:
        self._at_end = at_end
        self._open = threading.Lock()  # acquired by the first ``close``
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the thread soon; raises ``RuntimeError`` if the loop was closed."""
        self._loop.call_soon_threadsafe(function)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there; its result comes as a future. Raises ``EngineError`` if the loop was closed."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise EngineError("the engine is closed") from None
        if self._open.locked():  # ``_finish`` may have looked for tasks already
            future.cancel()
        return future

    def close(self, timeout: float) -> None:
        """Cancel all tasks and end the thread; waits up to ``timeout`` seconds. Closing twice is allowed."""
        if self._open.acquire(blocking=False):  # a second stop would interrupt ``_finish``
            with suppress(RuntimeError):  # it ends by itself
                self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._finish())
        finally:
            self._loop.close()

    async def _finish(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for attempt in range(_ATTEMPTS):
            for task in tasks:
                if attempt or not task.cancelling():  # else it may be cleaning up, or a library has cancelled it
                    task.cancel()
            if tasks:
                _, tasks = await asyncio.wait(tasks, timeout=_EACH_S)
        if self._at_end is not None:
            await self._at_end()
        await self._loop.shutdown_asyncgens()
