"""How the C library treats memory that the page's process has freed."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_LARGE = 256 * 1024
_KEEP = 1024 * 1024
_ARENAS = 2


def return_freed_memory() -> bool:
    """Have freed memory returned to the system, from the next allocation on; whether the C library can do so (glibc can).

    By itself glibc raises the size from which a buffer has pages of its own to that of the largest one freed so far, up to
    32 MB, and keeps twice that in each of up to eight arenas a core. A server whose threads build large replies now and
    then holds hundreds of MB of free memory after an hour. A process that computes should not call this: its buffers
    would be given back and asked for again in every step.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, _LARGE), (_M_TRIM_THRESHOLD, _KEEP), (_M_ARENA_MAX, _ARENAS))
    taken = [mallopt(name, value) == 1 for name, value in settings]
    return all(taken)
