"""Residual additions, so that a recorded step has no torch calls between its own kernels: these would end a program of
``parallel`` twice a layer."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.rows import read_row, share_rows, takes, write_row
from roseplay.kernels.cpu.simd import array_at, kernel

_CHUNK = 256  # numbers converted from bfloat16 at a time


def can_add(x: Any, y: Any) -> bool:
    """Returns whether ``add`` takes these: two contiguous tensors of one shape, dtype and device."""
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    if x.shape != y.shape or x.dtype != y.dtype or x.device != y.device or x.device.type != "cpu":
        return False
    return takes(x.dtype) and x.is_contiguous() and y.is_contiguous() and x.dim() > 0 and x.shape[-1] > 0


def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    """Write ``x + y`` to ``out``, rounded as torch rounds it."""
    # A recording may hold the only reference to x and y.
    share_rows(_add(x.dtype == torch.bfloat16), (x, y, out), x.numel(), hold=(x, y))


@cache
def _add(bf16: bool) -> Any:
    item = types.uint16 if bf16 else types.float32

    def add(args, piece):
        numbers, pieces = args[4], args[5]
        begin, end = numbers * piece // pieces, numbers * (piece + 1) // pieces
        x, y = array_at(args[1], item, begin, end - begin), array_at(args[2], item, begin, end - begin)
        out = array_at(args[3], item, begin, end - begin)
        if not bf16:
            for i in range(len(x)):
                out[i] = x[i] + y[i]
            return
        wide, sums = np.empty(_CHUNK, np.float32), np.empty(_CHUNK, np.float32)
        for first in range(0, len(x), _CHUNK):
            count = min(_CHUNK, len(x) - first)
            read_row(x[first : first + count], wide[:count], bf16)
            read_row(y[first : first + count], sums[:count], bf16)
            for i in range(count):
                sums[i] += wide[i]
            write_row(sums, out[first : first + count], bf16)

    return kernel(add)
