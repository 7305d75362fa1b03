"""Threads for submitting prompts, separate from those that serve everything else."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import anyio.to_thread

from roseplay.config import SamplingParams
from roseplay.engine.engine_like import HasTokenizer
from roseplay.engine.errors import EngineBusyError
from roseplay.engine.grammar_checks import start_check

SUBMITTING = 16  # concurrent calls
T = TypeVar("T")


class Submissions:
    """Runs functions that submit prompts in dedicated threads, a few at a time.

    Tokenising a long prompt takes a while, and with ``admission`` set to ``blocking`` a submit waits for its prefill.
    Neither may block the event loop or the threads that serve everything else.

    Args:
        turn_within_s: how long further calls wait for their turn.
    """

    def __init__(self, turn_within_s: float = 10.0) -> None:
        self._turn_within_s = turn_within_s
        self._turns = asyncio.Semaphore(SUBMITTING)
        self._threads: anyio.CapacityLimiter | None = None  # can only be made while an event loop runs

    async def run(self, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """Call a function in a thread; it runs to its end even if the caller is cancelled.

        Raises:
            EngineBusyError: too many calls are running already, and none ended within ``turn_within_s``.
        """
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(SUBMITTING)
        try:
            async with asyncio.timeout(self._turn_within_s):
                await self._turns.acquire()
        except TimeoutError:
            raise EngineBusyError(
                f"{SUBMITTING} calls are waiting for the engine to accept their prompts: try again later"
            ) from None
        call = functools.partial(function, *args, **named)
        work = asyncio.ensure_future(anyio.to_thread.run_sync(call, limiter=self._threads))
        work.add_done_callback(self._done)
        return await asyncio.shield(work)

    async def ask(self, submit: Callable[[], T], cancel: Callable[[T], object]) -> T:
        """Submit requests in a thread; if the caller is cancelled, ``cancel`` aborts them as soon as they exist."""
        abandoned, results = threading.Event(), list[T]()

        def submit_unless_abandoned() -> T:
            requests = submit()
            results.append(requests)
            if abandoned.is_set():
                cancel(requests)
            return requests

        try:
            return await self.run(submit_unless_abandoned)
        except BaseException:
            abandoned.set()
            for requests in results:
                cancel(requests)
            raise

    async def check_grammars(self, engine: HasTokenizer, *answers: SamplingParams) -> None:
        """Wait until the grammars of answers are checked; raises ``SettingError`` if one cannot be followed.

        This may take seconds, for which it holds no thread.
        """
        for structure in {params.structured_outputs for params in answers} - {None} if engine.info.tokenizes else ():
            start = functools.partial(start_check, str(structure), engine)
            await asyncio.wrap_future(await self.ask(start, lambda check: check.cancel()))

    def _done(self, work: asyncio.Future[Any]) -> None:
        self._turns.release()
        if not work.cancelled():
            work.exception()  # otherwise asyncio logs an exception that was never retrieved
