"""Memory on the CPU for what every step reads and writes: weights, KV blocks, and the tensors of recorded steps.

Linux gives pages of 2 MB to memory that asks for them (``madvise``), in which the processor translates one address instead of
512. numpy asks for arrays of 4 MB and more. The weights of a small model are smaller than a page, so that several share one.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

_CHUNK, _ALIGNED = 32 * 2**20, 64
_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_lock = threading.Lock()
_left = np.empty(0, np.uint8)  # of the newest chunk; a chunk is freed with the last tensor in it


def page_bytes() -> int:
    """Returns the size of the pages that large arrays get."""
    has_huge = _ENABLED.exists() and "[never]" not in _ENABLED.read_text()
    return 2 * 2**20 if has_huge else mmap.PAGESIZE


def zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor of zeros, in huge pages where the system has any. Raises ``MemoryError`` if it has no room."""
    global _left
    size = math.prod(shape) * dtype.itemsize
    if size > _CHUNK // 4:
        part = aligned(size)
    else:
        with _lock:
            if size > len(_left):
                _left = aligned(_CHUNK)
            part, _left = _left[:size], _left[math.ceil(size / _ALIGNED) * _ALIGNED :]
    return torch.from_numpy(part).view(dtype).view(shape).zero_()


def aligned(size: int) -> Any:
    """Returns an uninitialised array of bytes that begins with a cache line."""
    memory = np.empty(size + _ALIGNED, np.uint8)
    skip = -memory.ctypes.data % _ALIGNED
    return memory[skip : skip + size]
