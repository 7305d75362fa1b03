"""A list of calls that compute one step of a model, made while the step runs, to be called again for the next.

Kernels of ours are told where to read and write by numbers alone, which torch does not see: they go through ``run``, and
so come to be on the tape of the thread that is recording.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

_recording = threading.local()


class Tape:
    """Attributes: calls: in order, each without arguments. held: what they point to and nothing else may keep."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []
        self.held: list[Any] = []

    def replay(self) -> None:
        for call in self.calls:
            call()


def run(kernel: Callable[..., Any], *arguments: Any, hold: tuple[Any, ...] = ()) -> None:
    """Call a kernel of which the arguments say all; ``hold`` has what they point to beside tensors."""
    tape = getattr(_recording, "tape", None)
    if tape is not None:
        tape.calls.append(partial(kernel, *arguments))
        tape.held.extend(hold)
    kernel(*arguments)


@contextlib.contextmanager
def record(tape: Tape) -> Iterator[None]:
    """What this thread runs meanwhile is put on the tape."""
    _recording.tape = tape
    try:
        yield
    finally:
        _recording.tape = None
