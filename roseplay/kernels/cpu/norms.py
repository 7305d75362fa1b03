"""RMS norm and layer norm in one compiled pass: spelled out they are eight of torch's calls."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.parallel import share_out
from roseplay.kernels.cpu.rows import copy_row, is_light, narrow_row, pieces_of, round_row, widen
from roseplay.kernels.cpu.simd import bits, kernel, moved, pointer, real


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, plus_one: bool) -> torch.Tensor:
    """``x [..., dim]`` over its root mean square, times ``weight`` (after rounding, as Llama does) or, ``plus_one``, times
    ``1 + weight`` (before rounding, as Gemma does)."""
    x = x.contiguous()
    out, dim = torch.empty_like(x), x.shape[-1]
    places = (t.data_ptr() for t in (x, weight, out))
    rows, pieces = pieces_of(x)
    share_out(
        _rms_norm(x.dtype == torch.bfloat16, plus_one),
        [*places, rows, pieces, dim, bits(eps)],
        pieces,
        light=is_light(x),
    )
    return out


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """``x [..., dim]`` less its mean over its standard deviation, times ``weight`` plus ``bias``; rounded once."""
    x = x.contiguous()
    out, dim = torch.empty_like(x), x.shape[-1]
    places = (t.data_ptr() for t in (x, weight, bias, out))
    rows, pieces = pieces_of(x)
    share_out(
        _layer_norm(x.dtype == torch.bfloat16), [*places, rows, pieces, dim, bits(eps)], pieces, light=is_light(x)
    )
    return out


@cache
def _rms_norm(narrow: bool, plus_one: bool) -> Any:
    item = types.uint16 if narrow else types.float32

    def rms_norm(given, piece):
        x_at, weight_at, out_at, rows, pieces, dim = given[1], given[2], given[3], given[4], given[5], given[6]
        eps = real(given[7])
        weight, y = np.empty(dim, np.float32), np.empty(dim, np.float32)
        wide = y.view(np.uint32)
        given_weight = numba.carray(pointer(weight_at, item), dim)
        if narrow:
            widen(given_weight, weight.view(np.uint32))
        else:
            copy_row(given_weight, weight)
        if plus_one:
            for d in range(dim):
                weight[d] += np.float32(1)
        for row in range(rows * piece // pieces, rows * (piece + 1) // pieces):
            x = numba.carray(moved(pointer(x_at, item), row * dim), dim)
            out = numba.carray(moved(pointer(out_at, item), row * dim), dim)
            if narrow:
                widen(x, wide)
            else:
                copy_row(x, y)
            squares = np.float32(0)
            for d in range(dim):
                squares += y[d] * y[d]
            scale = np.float32(1) / np.float32(math.sqrt(squares / np.float32(dim) + np.float32(eps)))
            for d in range(dim):
                y[d] *= scale
            if narrow and not plus_one:
                round_row(wide)
            for d in range(dim):
                y[d] *= weight[d]
            if narrow:
                narrow_row(wide, out)
            else:
                copy_row(y, out)

    return kernel(rms_norm)


@cache
def _layer_norm(narrow: bool) -> Any:
    item = types.uint16 if narrow else types.float32

    def layer_norm(given, piece):
        x_at, weight_at, bias_at, out_at, rows, pieces = given[1], given[2], given[3], given[4], given[5], given[6]
        dim, eps = given[7], real(given[8])
        y, weight, bias = np.empty(dim, np.float32), np.empty(dim, np.float32), np.empty(dim, np.float32)
        for given_at, wide in ((weight_at, weight), (bias_at, bias)):
            given = numba.carray(pointer(given_at, item), dim)
            if narrow:
                widen(given, wide.view(np.uint32))
            else:
                copy_row(given, wide)
        for row in range(rows * piece // pieces, rows * (piece + 1) // pieces):
            x = numba.carray(moved(pointer(x_at, item), row * dim), dim)
            out = numba.carray(moved(pointer(out_at, item), row * dim), dim)
            if narrow:
                widen(x, y.view(np.uint32))
            else:
                copy_row(x, y)
            total, squares = np.float32(0), np.float32(0)
            for d in range(dim):
                total += y[d]
            mean = total / np.float32(dim)
            for d in range(dim):
                y[d] -= mean
                squares += y[d] * y[d]
            scale = np.float32(1) / np.float32(math.sqrt(squares / np.float32(dim) + np.float32(eps)))
            for d in range(dim):
                y[d] = y[d] * scale * weight[d] + bias[d]
            if narrow:
                narrow_row(y.view(np.uint32), out)
            else:
                copy_row(y, out)

    return kernel(layer_norm)
