"""Memory on the CPU for what steps read from end to end: weights, and KV blocks.

Linux gives pages of 2 MB to memory that asks for them by ``madvise``. A processor then needs one address translation where it
needs 512 with pages of 4 kB. ``malloc`` does not ask, and most weights are smaller than such a page, so that they share some.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

PAGE = 2 * 2**20
_CHUNK = 32 * 2**20
_ALIGNED = 64
_lock = threading.Lock()
_left = np.empty(0, np.uint8)  # of the newest chunk; a chunk is freed with the last tensor in it


def zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor of zeros, in huge pages where the system has any. Raises ``MemoryError`` if it has no room."""
    size = math.prod(shape) * dtype.itemsize
    if not size or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    part = _part(size) if size < _CHUNK // 4 else _chunk(size)[:size]
    return torch.frombuffer(part, dtype=dtype).view(*shape)


def _part(size: int) -> Any:
    """Returns bytes of the newest chunk, or of a new one if it has too few left."""
    global _left
    with _lock:
        if size > len(_left):
            _left = _chunk(_CHUNK)
        part, _left = _left[:size], _left[math.ceil(size / _ALIGNED) * _ALIGNED :]
    return part


def _chunk(size: int) -> Any:
    """Returns at least ``size`` bytes, from the beginning of a huge page."""
    size = -(-size // PAGE) * PAGE
    try:
        memory = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"{size:,} bytes cannot be allocated") from error
    memory.madvise(mmap.MADV_HUGEPAGE)
    chunk = np.frombuffer(memory, np.uint8)
    skip = -chunk.ctypes.data % PAGE
    return chunk[skip : skip + size]
