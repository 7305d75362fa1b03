"""Work in a process of its own, which may crash, lose the GPU or be ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

from roseplay.extras.bench.runs import BenchmarkError
from roseplay.formats.text import error_line

_END_S = 5.0


class Apart:
    """A process that sends what ``work(connection, *args)`` yields.

    Args:
        name: of the work, for messages.
        limit_s: seconds to wait, see ``receive``.

    Attributes:
        connection: what is sent here reaches ``work``.
    """

    def __init__(self, name: str, limit_s: float, work: Callable[..., Iterable[Any]], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.name, self._limit_s = name, limit_s
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, work, *args), name=f"roseplay-bench-{name}")
        self._process.start()
        theirs.close()  # else the pipe would stay open after the process has ended

    def receive(self) -> Any:
        """Returns what it sends next; ``None`` when it has ended.

        Raises:
            BenchmarkError: it failed, or sent nothing within the limit; it is ended.
        """
        error, sent = f"was given up after {self._limit_s:,g} s", None
        if self.connection.poll(self._limit_s):
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
            assert self._process.pid is not None  # it has been started
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
