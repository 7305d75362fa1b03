"""How fast this machine reads memory: what a decode step, which reads every weight once, is measured against."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_BYTES = 512 * 2**20  # far beyond any cache
_REPEATS = 5


def read_bandwidth(device: str = "cpu") -> float:
    """Bytes a second of one pass of reading over 512 MB by all of torch's threads; the median of five passes.

    On a GPU it is a copy's, read and write together, which is what its memory gives at best.
    """
    if device.startswith("cuda"):
        return _copy_bandwidth(device)
    import torch  # bad flags are told before it has loaded

    memory = torch.ones(_BYTES // 8, dtype=torch.float64)
    memory.sum()
    return _BYTES / statistics.median(_seconds(memory) for _ in range(_REPEATS))


def _seconds(memory: torch.Tensor) -> float:
    began = time.perf_counter()
    memory.sum()
    return time.perf_counter() - began


def _copy_bandwidth(device: str) -> float:
    import torch

    source = torch.ones(_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    took = []
    for _ in range(_REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) / 1000)
    return 2 * _BYTES / statistics.median(took)
