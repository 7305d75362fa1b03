"""Looks up rows of a weight in strips of quantized blocks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.quants.formats import BLOCK, STRIP, Format
from roseplay.kernels.cpu.rows import share_rows, write_row
from roseplay.kernels.cpu.simd import array_at, float_bits, float_from_bits, half_from_bits, kernel


def look_up(
    ids: torch.Tensor, strips: torch.Tensor, form: Format, inner: int, scale: float, dtype: torch.dtype
) -> torch.Tensor:
    """Returns the rows ``ids [...]`` of a weight, dequantized and multiplied by ``scale``: ``[..., in]``."""
    ids = ids.contiguous()
    out = torch.empty((*ids.shape, inner), dtype=dtype)
    offset = -1 if form.offset is None else form.offset
    compute = _look_up(form.bits, form.scales, offset, dtype == torch.bfloat16)
    share_rows(compute, (out, ids, strips), ids.numel(), inner, strips.shape[1], float_bits(scale))
    return out


@cache
def _look_up(bits: int, scales: int, offset: int, bf16: bool) -> Any:
    item = types.uint16 if bf16 else types.float32
    form = Format(bits, scales, None if offset < 0 else offset)
    number_bytes, block_bytes, per_scale = form.number_bytes, form.block_bytes, BLOCK // scales

    def look_up(args, piece):
        rows, pieces, inner, blocks, factor = args[4], args[5], args[6], args[7], np.float32(float_from_bits(args[8]))
        y = np.empty(blocks * BLOCK, np.float32)
        for row in range(rows * piece // pieces, rows * (piece + 1) // pieces):
            token = array_at(args[2], types.int64, row, 1)[0]
            lane = token % STRIP
            for block in range(blocks):
                first = (token // STRIP * blocks + block) * block_bytes
                numbers = array_at(args[3], types.uint8, first, number_bytes)
                factors = array_at(
                    args[3], types.uint16, (first + number_bytes) // 2, (block_bytes - number_bytes) // 2
                )
                for i in range(BLOCK):
                    if bits == 4:
                        number = np.int32(numbers[(i % 16 // 4 * STRIP + lane) * 4 + i % 4] >> (i // 16 * 4) & 15)
                    else:
                        number = np.int32(numbers[(i // 4 * STRIP + lane) * 4 + i % 4])
                    scale = half_from_bits(factors[i // per_scale * STRIP + lane])
                    if offset < 0:
                        value = np.float32(number) * scale + half_from_bits(factors[scales * STRIP + lane])
                    else:
                        value = np.float32(number - offset) * scale
                    y[block * BLOCK + i] = value
            for i in range(inner):
                y[i] *= factor
            write_row(y[:inner], array_at(args[1], item, row * inner, inner), bf16)

    return kernel(look_up)
