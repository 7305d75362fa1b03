"""The GPU's way of running steps on a CPU: graphs that record and call again, and steps that run one ahead.

It makes nothing faster. It lets tests, and ``roseplay bench gpu --device cpu``, go through the same code as a GPU does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_emulating = False


def emulating() -> bool:
    return _emulating


@contextlib.contextmanager
def emulate_gpu() -> Iterator[None]:
    """Models that are loaded meanwhile, in this process, run their steps as on a GPU."""
    global _emulating
    before, _emulating = _emulating, True
    try:
        yield
    finally:
        _emulating = before
