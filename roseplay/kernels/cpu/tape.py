"""A list of calls that compute one step of a model, made while the step runs, to be called again for the next.

Our own kernels get addresses instead of tensors, so that torch does not see what they do: they are called through ``run``,
which puts them on the tape of the thread that is recording.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

_recording = threading.local()


class Tape:
    """Attributes: calls: in order, each without arguments."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []

    def replay(self) -> None:
        for call in self.calls:
            call()

    def join(self) -> None:
        """Replace neighbours by one call where their type has a function for it (``joined``)."""
        calls: list[Callable[[], Any]] = []
        for kind, neighbours in groupby(self.calls, type):
            alike = list(neighbours)
            calls += [kind.joined(alike)] if hasattr(kind, "joined") else alike  # type: ignore[attr-defined]
        self.calls = calls


def run(call: Callable[[], None]) -> None:
    """Make a call, and put it on the tape of this thread if there is one."""
    tape = getattr(_recording, "tape", None)
    if tape is not None:
        tape.calls.append(call)
    call()


@contextlib.contextmanager
def record(tape: Tape) -> Iterator[None]:
    """While entered, what this thread calls through ``run`` is put on the tape."""
    _recording.tape = tape
    try:
        yield
    finally:
        _recording.tape = None
