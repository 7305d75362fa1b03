"""Controls how the C library of the page's process treats freed memory."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_LARGE = 256 * 1024
_KEEP = 1024 * 1024
_ARENAS = 2


def return_freed_memory() -> bool:
    """Have freed memory returned to the system from now on; returns whether the C library supports that (glibc does).

    By default, glibc raises the size above which a buffer gets pages of its own to that of the largest one freed so
    far, up to 32 MB, and keeps twice that in each of up to eight arenas per core. After an hour, a server whose threads
    sometimes build large replies holds hundreds of MB of free memory. A process that computes should not call this: its
    buffers would be returned and requested again in every step.
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
