"""Residual sums: one call of torch's is little, but a step has two of them a layer, and none of our threads takes part."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.parallel import share_out
from roseplay.kernels.cpu.rows import is_light, narrow_row, pieces_of, takes, widen
from roseplay.kernels.cpu.simd import kernel, moved, pointer


def can_add(x: Any, y: Any) -> bool:
    """Whether ``add`` takes them: two tensors alike, each in one piece of memory."""
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    alike = x.shape == y.shape and x.dtype == y.dtype and x.device == y.device
    return (
        alike
        and x.device.type == "cpu"
        and takes(x.dtype)
        and x.is_contiguous()
        and y.is_contiguous()
        and x.dim() > 0
        and x.shape[-1] > 0
    )


def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    """``x + y``, as torch rounds it, into ``out``."""
    pieces = pieces_of(x)[1]
    places = (t.data_ptr() for t in (x, y, out))
    kernel, given = _add(x.dtype == torch.bfloat16), [*places, x.numel(), pieces]
    share_out(kernel, given, pieces, hold=(x, y), light=is_light(x))  # which may be nobody else's


@cache
def _add(narrow: bool) -> Any:
    item = types.uint16 if narrow else types.float32

    def add(given, piece):
        numbers, pieces = given[4], given[5]
        begin, end = numbers * piece // pieces, numbers * (piece + 1) // pieces
        x = numba.carray(moved(pointer(given[1], item), begin), end - begin)
        y = numba.carray(moved(pointer(given[2], item), begin), end - begin)
        out = numba.carray(moved(pointer(given[3], item), begin), end - begin)
        if not narrow:
            for i in range(len(x)):
                out[i] = x[i] + y[i]
            return
        stretch, wide, sums = 256, np.empty(256, np.float32), np.empty(256, np.float32)
        for first in range(0, len(x), stretch):
            count = min(stretch, len(x) - first)
            widen(x[first : first + count], wide.view(np.uint32)[:count])
            widen(y[first : first + count], sums.view(np.uint32)[:count])
            for i in range(count):
                sums[i] += wide[i]
            narrow_row(sums.view(np.uint32)[:count], out[first : first + count])

    return kernel(add)
