"""The list of calls that compute one step of a model, recorded while the step runs and repeated for other steps.

Kernels of this package take addresses instead of tensors, so torch's dispatcher does not see them. They are called
through ``run``, which appends them to the tape of the current thread if it is recording.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

_recording = threading.local()


class Tape:
    """Recorded ``calls``, in order; each takes no arguments."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []

    def replay(self) -> None:
        for call in self.calls:
            call()

    def join(self) -> None:
        """Replace consecutive calls of one type by a single call if the type has a function ``joined`` for that."""
        calls: list[Callable[[], Any]] = []
        for kind, neighbours in groupby(self.calls, type):
            alike = list(neighbours)
            calls += [kind.joined(alike)] if hasattr(kind, "joined") else alike  # type: ignore[attr-defined]
        self.calls = calls


def run(call: Callable[[], None]) -> None:
    """Make a call, and append it to the tape of this thread if it is recording."""
    tape = getattr(_recording, "tape", None)
    if tape is not None:
        tape.calls.append(call)
    call()


@contextlib.contextmanager
def record(tape: Tape) -> Iterator[None]:
    """Append this thread's calls through ``run`` to the tape while entered."""
    _recording.tape = tape
    try:
        yield
    finally:
        _recording.tape = None
