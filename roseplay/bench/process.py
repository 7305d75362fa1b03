"""Work in a process of its own, which may crash, lose the GPU or be ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

from roseplay.bench.runs import BenchmarkError, error_line

_END_S = 5.0


class Apart:
    """A process that sends what ``work(connection, *args)`` yields.

    Args:
        name: of the work, for messages.
        limit_s: seconds to wait, see ``receive``.
        context: starts the process, as of ``multiprocessing``; by default a new interpreter does.

    Attributes:
        connection: what is sent here reaches ``work``.
    """

    def __init__(
        self, name: str, limit_s: float, work: Callable[..., Iterable[Any]], *args: Any, context: Any = None
    ) -> None:
        context = context or multiprocessing.get_context("spawn")
        self.name, self._limit_s = name, limit_s
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, work, *args), name=f"roseplay-bench-{name}")
        self._process.start()
        theirs.close()  # else the pipe would stay open after the process has ended

    def receive(self, since: float | None = None) -> Any:
        """Returns what it sends next; ``None`` when it has ended.

        Args:
            since: from when the limit counts, in seconds of ``time.monotonic``; by default from now.

        Raises:
            BenchmarkError: it failed, or sent nothing within the limit; it is ended.
        """
        left = self._limit_s if since is None else since + self._limit_s - time.monotonic()
        error, sent = f"was given up after {self._limit_s:,g} s", None
        if self.connection.poll(max(0.0, left)):
            try:
                error, sent = self.connection.recv()
            except (EOFError, OSError):
                self._process.join(_END_S)
                error = f"ended with code {self._process.exitcode}" if self._process.exitcode else ""
        if error:
            self.close()
            raise BenchmarkError(f"{self.name} {error}")
        return sent

    def close(self) -> None:
        """End it, and the engines that it has started."""
        if self._process.is_alive():
            with contextlib.suppress(OSError, AttributeError):  # it has no group yet, or this system has none
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        self._process.join(_END_S)
        self.connection.close()


def _work(connection: Connection, work: Callable[..., Iterable[Any]], *args: Any) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # so that the processes of its engines can be ended with it
    try:
        for result in work(connection, *args):
            connection.send(("", result))
    except EOFError:
        os._exit(1)  # the parent has ended: no thread may keep this process alive
    except Exception as error:
        connection.send((f"failed: {error_line(error)}", None))
    connection.close()
