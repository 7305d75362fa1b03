"""Programs that tests start, signal and watch, each in its own session so that all of its processes are known."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).with_name("programs")

_PROGRESS = re.compile(r"roseplay: (\S+ is loading\.|the page is at )")

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


class Program:
    """A Python program in its own session.

    Args:
        arguments: the interpreter's arguments.
        terminal: file descriptor of a terminal that becomes its controlling terminal and its standard streams.
        environment: variables in addition to those of this process.
    """

    def __init__(
        self, *arguments: str | Path, terminal: int | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
        streams = subprocess.PIPE if terminal is None else terminal
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=streams,
            stderr=streams,
            text=True,
            start_new_session=True,
            preexec_fn=_heed_interrupts if terminal is None else _take_terminal,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._readers: list[threading.Thread] = []
        if terminal is None:
            self._read(self.process.stdout, self._lines.put)
            self._read(self.process.stderr, self._errors.append)

    def _read(self, stream: Any, take: Callable[[Any], None]) -> None:
        def read() -> None:
            for line in stream:
                take(line)
            if stream is self.process.stdout:
                take(None)

        self._readers.append(threading.Thread(target=read, daemon=True))
        self._readers[-1].start()

    def line(self, timeout: float = 240.0) -> str:
        """The next line of its output."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"it said nothing for {timeout:g} s; errors: {self.errors}") from None
        assert line is not None, f"it ended without another line; errors: {self.errors}"
        return line.rstrip("\n")

    @property
    def errors(self) -> str:
        """Its standard error without progress messages; complete once the program has ended."""
        if self.process.poll() is not None:
            self._readers[-1].join(5)
        return "".join(line for line in self._errors if not _PROGRESS.match(line))

    def signal_group(self, number: signal.Signals) -> None:
        """Signal it and its children, as a terminal does."""
        os.killpg(self.process.pid, number)

    def ended(self, timeout: float = 120.0) -> int:
        """Wait for its end; returns the exit code."""
        return self.process.wait(timeout)

    @property
    def processes(self) -> list[int]:
        """Its running processes: itself, its children, and any that these have left behind."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            except OSError:  # it has just ended
                continue
            if int(session) == self.process.pid and state not in "ZX":
                found.append(int(path.parent.name))
        return found

    def kill(self) -> None:
        """Kill what is left of it."""
        if self.processes:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                for reader in self._readers:
                    reader.join(5)
                stream.close()


def _heed_interrupts() -> None:
    """A shell starts background commands with SIGINT ignored, and the tests may be running as one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _take_terminal() -> None:
    import fcntl
    import termios

    _heed_interrupts()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
