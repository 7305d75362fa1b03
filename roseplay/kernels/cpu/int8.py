"""Matrix products with weights in int8: a byte for each number, so that a decode step reads half of what bfloat16 reads.

Each output channel of a weight has its own scale, and so does each row of x, which is rounded to int8 on arrival (W8A8
with dynamic scales in vLLM's terms). The CPU multiplies four pairs of bytes a lane at once, one byte signed and the
other unsigned, so weights are stored plus 128; the excess, 128 times the sum of x's row, is subtracted again.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from roseplay.kernels.cpu import amx
from roseplay.kernels.cpu.features import has, has_amx
from roseplay.kernels.cpu.matmul import partition
from roseplay.kernels.cpu.parallel import share_out
from roseplay.kernels.cpu.rows import copy_rows, read_row, share_rows
from roseplay.kernels.cpu.simd import (
    FLOAT,
    FLOATS,
    INT,
    LANES,
    Emitter,
    address,
    advance,
    array_at,
    kernel,
    pointer,
)
from roseplay.kernels.cpu.tiles import MOST_ROWS, STRIP, multiply_rows

STEP = 64  # rows are padded to a multiple of this many numbers
OFFSET = 128  # added to weights to make them unsigned
_LARGEST = 127
_COLLIDING_BYTES, _LINE = 2048, 64  # see ``matmul``
_AHEAD = 4096  # bytes

# Indices of the kernels' arguments: addresses, their own first, then sizes.
(
    _KERNEL, _X, _X_SCALES, _X_SUMS, _WEIGHT, _SCALES, _BIAS, _OUT,
    _ROWS, _STRIDE, _INNER, _OUTER, _BLOCKS, _GROUPS,
) = range(14)  # fmt: skip


@cache
def available() -> bool:
    """Returns whether this CPU multiplies bytes in 512-bit vectors."""
    return has("avx512f", "avx512vnni")


@cache
def has_tiles() -> bool:
    """Returns whether this CPU multiplies bytes in AMX's tiles."""
    return has_amx() and has("amx-int8")


def lay_out(weight: torch.Tensor) -> torch.Tensor:
    """Returns int8 ``weight [out, in]`` as uint8 strips ``[strips, in / 4, 32, 4]``, ``in`` padded to a multiple of 64."""
    outer, inner = weight.shape
    padded = -(-inner // STEP) * STEP
    strips = torch.full((-(-outer // STRIP), padded // 4, STRIP, 4), OFFSET, dtype=torch.uint8)
    for strip, rows in zip(strips, weight.split(STRIP), strict=True):
        numbers = (rows.to(torch.int16) + OFFSET).to(torch.uint8)
        padding = torch.full((len(rows), padded - inner), OFFSET, dtype=torch.uint8)
        strip[:, : len(rows)] = torch.cat((numbers, padding), 1).reshape(len(rows), -1, 4).transpose(0, 1)
    return strips


def multiply(
    x: torch.Tensor,
    strips: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor,
    sizes: tuple[int, int],
    tiles_from: int | None = None,
) -> torch.Tensor:
    """``x [..., in]``, float32 or bfloat16, times a weight, plus ``bias``: ``[..., out]`` in x's dtype.

    Args:
        strips: the weight, as ``lay_out`` returns it.
        scales, bias: float32 ``[32 * strips]``, padded with zeros.
        sizes: ``(in, out)``.
        tiles_from: the fewest rows for which to use AMX's tiles, if the CPU has them; None for never.

    Raises ``RuntimeError`` if the last size of x is not the weight's.
    """
    inner, outer = sizes
    if x.shape[-1] != inner:
        raise RuntimeError(f"x is {list(x.shape)}, the weight [{outer}, {inner}]")
    x = x.contiguous()
    rows, bf16 = x.numel() // inner, x.dtype == torch.bfloat16
    numbers, x_scales, x_sums = _quantize(x, rows, strips.shape[1] * 4)
    out = torch.empty((*x.shape[:-1], outer), dtype=x.dtype)
    tiles = tiles_from is not None and rows >= tiles_from and has_tiles()
    blocks, groups = partition(rows, strips, amx.MOST_ROWS if tiles else MOST_ROWS)
    tensors = (numbers, x_scales, x_sums, strips, scales, bias, out)
    places = [tensor.data_ptr() for tensor in tensors]
    product = _by_tiles(bf16) if tiles else _by_vectors(bf16)
    share_out(product, [*places, rows, numbers.stride(0), strips.shape[1] * 4, outer, blocks, groups], blocks * groups)
    return out


def _quantize(x: torch.Tensor, rows: int, padded: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns rows as int8 ``[rows, at least padded]``, their scales, and 128 times their sums."""
    stride = padded + _LINE if padded % _COLLIDING_BYTES == 0 else padded
    numbers = torch.empty((rows, stride), dtype=torch.int8)
    scales, sums = torch.empty(rows, dtype=torch.float32), torch.empty(rows, dtype=torch.int32)
    share_rows(_rounding(x.dtype == torch.bfloat16), (x, numbers, scales, sums), rows, x.shape[-1], stride)
    return numbers, scales, sums


@cache
def _rounding(bf16: bool) -> Any:
    """Returns the kernel of ``_quantize``; a piece of its work is some rows."""
    item = types.uint16 if bf16 else types.float32

    def round_rows(args, piece):
        rows, pieces, inner, stride = args[5], args[6], args[7], args[8]
        scales, sums = array_at(args[3], types.float32, 0, rows), array_at(args[4], types.int32, 0, rows)
        y = np.empty(inner, np.float32)
        for row in range(rows * piece // pieces, rows * (piece + 1) // pieces):
            read_row(array_at(args[1], item, row * inner, inner), y, bf16)
            to = array_at(args[2], types.int8, row * stride, stride)
            largest = np.float32(0)
            for i in range(inner):
                largest = max(largest, abs(y[i]))
            inverse = np.float32(_LARGEST) / largest if largest > 0 else np.float32(0)
            total = np.int32(0)
            for i in range(inner):
                number = np.int32(np.rint(y[i] * inverse))
                total += number
                to[i] = number
            to[inner:] = 0
            scales[row] = largest / np.float32(_LARGEST)
            sums[row] = total * np.int32(OFFSET)

    return kernel(round_rows)


@cache
def _by_vectors(bf16: bool) -> Any:
    """Returns the kernel of a product in vectors; a piece of its work is a block of rows times a group of strips."""
    item, bits = (types.uint16, np.uint16) if bf16 else (types.float32, np.float32)
    most, ahead = MOST_ROWS, _AHEAD // 4

    def product(args, piece):
        rows, inner, outer, stride = args[_ROWS], args[_INNER] // 4, args[_OUTER], args[_STRIDE] // 4
        x, weight = pointer(args[_X], types.int32), pointer(args[_WEIGHT], types.int32)
        x_scales, x_sums = pointer(args[_X_SCALES], types.float32), pointer(args[_X_SUMS], types.int32)
        scales, bias = pointer(args[_SCALES], types.float32), pointer(args[_BIAS], types.float32)
        out, strips, size = pointer(args[_OUT], item), (outer + STRIP - 1) // STRIP, inner * STRIP
        sums, spare, zeros = (
            np.empty(most * STRIP, np.float32),
            np.empty(most * STRIP, bits),
            np.zeros(STRIP, np.float32),
        )
        blocks, groups = args[_BLOCKS], args[_GROUPS]
        block, group = piece // groups, piece % groups
        begin = rows * block // blocks
        here = rows * (block + 1) // blocks - begin
        tiles = (here + most - 1) // most
        for strip in range(strips * group // groups, strips * (group + 1) // groups):
            columns = min(STRIP, outer - strip * STRIP)
            whole = columns == STRIP
            for tile in range(tiles):
                first = begin + here * tile // tiles
                count = begin + here * (tile + 1) // tiles - first
                to = advance(out, first * outer + strip * STRIP)
                # Each tile prefetches its part of the next strip; a single tile, the strip itself.
                following = strip * size + (ahead if tiles == 1 else size + size * tile // tiles)
                multiply_rows(
                    advance(x, first * stride), stride, advance(weight, strip * size), address(zeros, 0), 0,
                    inner, address(sums, 0), STRIP, advance(weight, following), 64 // tiles + (tiles > 1), count, most,
                )  # fmt: skip
                scale_rows(
                    address(sums, 0), advance(x_scales, first), advance(x_sums, first), advance(scales, strip * STRIP),
                    advance(bias, strip * STRIP), to if whole else address(spare, 0), outer if whole else STRIP, count,
                )  # fmt: skip
                if not whole:
                    copy_rows(spare, STRIP, numba.carray(to, (count - 1) * outer + columns), outer, count, columns)

    return kernel(product)


@cache
def _by_tiles(bf16: bool) -> Any:
    """Returns the same kernel for AMX's tiles."""
    item, bits = (types.uint16, np.uint16) if bf16 else (types.float32, np.float32)
    most = amx.MOST_ROWS

    def product(args, piece):
        rows, inner, outer, stride = args[_ROWS], args[_INNER], args[_OUTER], args[_STRIDE]
        x, weight = pointer(args[_X], types.int8), pointer(args[_WEIGHT], types.int8)
        x_scales, x_sums = pointer(args[_X_SCALES], types.float32), pointer(args[_X_SUMS], types.int32)
        scales, bias = pointer(args[_SCALES], types.float32), pointer(args[_BIAS], types.float32)
        out, strips, size, steps = pointer(args[_OUT], item), (outer + STRIP - 1) // STRIP, inner * STRIP, inner // STEP
        config, configured = np.zeros(amx.CONFIG_BYTES, np.uint8), 0
        sums, spare = np.empty(most * STRIP, np.float32), np.empty(most * STRIP, bits)
        blocks, groups = args[_BLOCKS], args[_GROUPS]
        block, group = piece // groups, piece % groups
        begin, end = rows * block // blocks, rows * (block + 1) // blocks
        for strip in range(strips * group // groups, strips * (group + 1) // groups):
            columns, at = min(STRIP, outer - strip * STRIP), advance(weight, strip * size)
            whole = columns == STRIP
            for first in range(begin, end, most):
                count = min(most, end - first)
                tile, to = advance(x, first * stride), advance(out, first * outer + strip * STRIP)
                configured = amx.multiply_rows(
                    config, configured, tile, stride, at, steps, address(sums, 0), count, first == begin
                )
                scale_rows(
                    address(sums, 0), advance(x_scales, first), advance(x_sums, first), advance(scales, strip * STRIP),
                    advance(bias, strip * STRIP), to if whole else address(spare, 0), outer if whole else STRIP, count,
                )  # fmt: skip
                if not whole:
                    copy_rows(spare, STRIP, numba.carray(to, (count - 1) * outer + columns), outer, count, columns)
        amx.release()

    return kernel(product)


@intrinsic  # type: ignore[untyped-decorator]
def scale_rows(context, sums, x_scales, x_sums, scales, bias, out, out_stride, rows):
    """Write int32 ``sums [rows, 32]`` less ``x_sums``, times both scales, plus ``bias``, to rows of ``out``, float32 or
    bfloat16 (as uint16)."""

    def generate(context, builder, signature, args):
        sums, x_scales, x_sums, scales, bias, out, out_stride, rows = args
        emit, b = Emitter(builder), builder
        halves = [[emit.load(at, LANES * half, FLOAT, LANES) for at in (scales, bias)] for half in range(2)]
        with cgutils.for_range(b, rows) as loop:
            row = b.gep(sums, [b.mul(loop.index, ir.Constant(loop.index.type, STRIP))])
            to = b.gep(out, [b.mul(loop.index, out_stride)])
            scale = emit.broadcast(b.load(b.gep(x_scales, [loop.index])))
            excess = emit.broadcast(b.load(b.gep(x_sums, [loop.index])))
            for half, (weight_scale, offset) in enumerate(halves):
                whole = b.sub(emit.load(row, LANES * half, INT, LANES), excess)
                result = emit.fma(b.fmul(b.sitofp(whole, FLOATS), scale), weight_scale, offset)
                if out.type.pointee == ir.IntType(16):
                    result = emit.rounded(result)
                place = b.gep(to, [ir.Constant(ir.IntType(64), LANES * half)])
                b.store(result, b.bitcast(place, result.type.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(sums, x_scales, x_sums, scales, bias, out, out_stride, rows), generate
