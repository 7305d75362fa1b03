"""All threads for one kernel that Numba compiled: who calls it, how many there are, one call at a time."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numba
import numpy as np
import torch

from roseplay.model.cpu import tape
from roseplay.model.cpu.lanes import address, call, compiled

# Numba's simplest threading layer does not bear two calls at once, and two engines of a process would only slow each
# other down.
_one_at_a_time = threading.Lock()
_of_thread = threading.local()


def share_out(arguments: list[int], pieces: int, hold: tuple[Any, ...] = ()) -> None:
    """Call the kernel whose address ``arguments`` begin with for each of so many pieces, by as many threads as torch has.

    The kernel is a C function of a pointer to ``arguments`` and of the piece's number; ``hold`` is as in ``tape.run``.
    """
    given = np.array(arguments)
    if pieces == 1:
        tape.run(_alone(), given, hold=hold)
    else:
        tape.run(_share_out, given, pieces, hold=hold)


def _share_out(given: Any, pieces: int) -> None:
    with _one_at_a_time:
        _use_threads(torch.get_num_threads())
        _together()(given, pieces)


def _use_threads(number: int) -> None:
    """As many of Numba's threads as torch has. Numba's first call starts its own, and with them sets OpenMP's number, which
    is torch's too where both use one OpenMP: it is put back."""
    if getattr(_of_thread, "threads", None) == number:
        return
    numba.set_num_threads(min(number, numba.config.NUMBA_NUM_THREADS))
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)
    _of_thread.threads = number


@cache
def _together() -> Any:
    """Compiled once for all kernels, because what makes a loop parallel takes longer to compile than they do."""

    def together(arguments, pieces):
        for piece in numba.prange(pieces):
            call(arguments[0], address(arguments, 0), np.int64(piece))

    return compiled(together, parallel=True)


@cache
def _alone() -> Any:
    def alone(arguments):
        call(arguments[0], address(arguments, 0), np.int64(0))

    return compiled(alone)
