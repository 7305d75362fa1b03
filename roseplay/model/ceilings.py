"""A machine's upper limits: how fast it reads memory, and how fast it multiplies large matrices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

_BYTES = 512 * 2**20  # far beyond any cache
_REPEATS = 5


def read_bandwidth(device: str) -> float:
    """Returns the bytes a second of one pass of reading over 512 MB, by all of torch's threads.

    Decode steps, which read every weight once, are measured against it. On a GPU it is the rate of a copy, reading and
    writing together, which is the most that its memory achieves.
    """
    import torch  # here, to report bad flags before it is loaded

    if device.startswith("cuda"):
        source = torch.ones(_BYTES, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return 2 * _BYTES / median_seconds(lambda: target.copy_(source), device)
    memory = torch.ones(_BYTES // 8, dtype=torch.float64)
    return _BYTES / median_seconds(memory.sum, device)


def matmul_flops(device: str, size: int, dtype: str = "bfloat16") -> float:
    """Returns the floating-point operations a second of a product of two random ``size`` × ``size`` matrices."""
    import torch

    a, b = (torch.randn((size, size), dtype=getattr(torch, dtype), device=device) for _ in range(2))
    return 2.0 * size**3 / median_seconds(lambda: a @ b, device)


def median_seconds(call: Callable[[], Any], device: str) -> float:
    """Returns the median time of a call in seconds, after two calls to warm up."""
    return statistics.median([_seconds(call, device) for _ in range(_REPEATS + 2)][2:])


def _seconds(call: Callable[[], Any], device: str) -> float:
    if not device.startswith("cuda"):
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000
