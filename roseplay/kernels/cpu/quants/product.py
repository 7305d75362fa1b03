"""Products of rows with a weight in strips of quantized blocks, and look-ups of its rows.

Rows are rounded and multiplied in integers (``tiles``), in pieces of a block of rows times a group of strips, as in
``matmul``; or the strips are expanded to floats for ``matmul``'s own products, which may pay for many rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu import matmul
from roseplay.kernels.cpu.parallel import Work
from roseplay.kernels.cpu.quants.strips import STRIP, block_bytes
from roseplay.kernels.cpu.quants.tiles import RECORD, expand_block, most_rows, multiply_blocks
from roseplay.kernels.cpu.rows import read_row, share_rows, takes, write_row
from roseplay.kernels.cpu.simd import address, advance, array_at, float_bits, float_from_bits, kernel, pointer
from roseplay.model.ggml_blocks import BLOCK, Format

_COLLIDING_BYTES, _LINE = 2048, 64  # see ``matmul``
AHEAD = (16384, 4096, 1024)  # bytes by which strips may be prefetched; the first one unless another is clearly faster

# Indices of the kernel's arguments: addresses, its own first, then sizes.
_KERNEL, _X, _RECORDS, _WEIGHT, _BIAS, _OUT, _ROWS, _STRIDE, _INNER, _OUTER, _BLOCKS, _GROUPS, _AHEAD = range(13)


def multiply(
    x: torch.Tensor,
    strips: torch.Tensor,
    form: Format,
    bias: torch.Tensor,
    sizes: tuple[int, int],
    floats_from: int | None,
    ahead: int = AHEAD[0],
) -> torch.Tensor:
    """``x [..., in]``, float32 or bfloat16, times a weight, plus ``bias``: ``[..., out]`` in x's dtype.

    Args:
        strips: the weight, as ``strips.lay_out`` returns it.
        bias: float32 ``[32 * strips]``, padded with zeros.
        sizes: ``(in, out)``.
        floats_from: the fewest rows for which strips are expanded; None for never.
        ahead: bytes by which strips are prefetched.

    Raises ``RuntimeError`` if x has another dtype, or its last size is not the weight's.
    """
    inner, outer = sizes
    if not takes(x.dtype) or x.shape[-1] != inner:
        raise RuntimeError(f"x is {x.dtype} {list(x.shape)}, the weight [{outer}, {inner}]")
    rows, padded = x.numel() // inner, strips.shape[1] * BLOCK
    if floats_from is not None and rows >= floats_from:
        x = torch.nn.functional.pad(x, (0, padded - inner)) if padded > inner else x
        return matmul.multiply(x, expanded(strips, form, x.dtype), bias, outer, 1)
    x = x.contiguous()
    out = torch.empty((*x.shape[:-1], outer), dtype=x.dtype)
    numbers, records = rounded(x, rows, padded)
    blocks, groups = matmul.partition(rows, strips, most_rows())
    places = [tensor.data_ptr() for tensor in (numbers, records, strips, bias, out)]
    product = _product(*form.literals, x.dtype == torch.bfloat16)
    sizes_of = [rows, numbers.stride(0), padded, outer, blocks, groups, ahead]
    Work(product, [*places, *sizes_of], blocks * groups, reads=strips).run()
    return out


def rounded(x: torch.Tensor, rows: int, padded: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns rows as int8 ``[rows, at least padded]``, and float32 ``[rows, padded / 32, 4]`` that describe their
    blocks."""
    stride = padded + _LINE if padded % _COLLIDING_BYTES == 0 else padded
    numbers = torch.empty((rows, stride), dtype=torch.int8)
    records = torch.empty((rows, padded // BLOCK, RECORD), dtype=torch.float32)
    share_rows(_rounding(x.dtype == torch.bfloat16), (x, numbers, records), rows, x.shape[-1], stride, padded)
    return numbers, records


@numba.njit(inline="always")
def round_blocks(y, numbers, records):
    """Round a row of float32 to int8 in blocks of 32; ``records`` is flat. The scale of a block with a NaN is NaN."""
    bits, bits_of_records = y.view(np.uint32), records.view(np.uint32)
    for block in range(len(y) // BLOCK):
        begin = block * BLOCK
        largest_bits = np.uint32(0)  # in the order of the numbers, then NaN
        for i in range(BLOCK):
            largest_bits = max(largest_bits, bits[begin + i] & np.uint32(0x7FFFFFFF))
        bits_of_records[RECORD * block] = largest_bits
        largest = records[RECORD * block]
        inverse = np.float32(127) / largest if largest > 0 else np.float32(0)
        first, second = np.int32(0), np.int32(0)
        for i in range(BLOCK // 2):
            number = np.int32(np.rint(y[begin + i] * inverse))
            other = np.int32(np.rint(y[begin + BLOCK // 2 + i] * inverse))
            numbers[begin + i], numbers[begin + BLOCK // 2 + i] = number, other
            first += number
            second += other
        scale = largest / np.float32(127)
        records[RECORD * block] = scale
        records[RECORD * block + 1] = scale * np.float32(first + second)
        records[RECORD * block + 2] = scale * np.float32(first)
        records[RECORD * block + 3] = scale * np.float32(second)


@cache
def _rounding(bf16: bool) -> Any:
    item = types.uint16 if bf16 else types.float32

    def round_rows(args, piece):
        rows, pieces, inner, stride, padded = args[4], args[5], args[6], args[7], args[8]
        y, described = np.zeros(padded, np.float32), padded // BLOCK * RECORD
        for row in range(rows * piece // pieces, rows * (piece + 1) // pieces):
            read_row(array_at(args[1], item, row * inner, inner), y[:inner], bf16)
            to = array_at(args[2], types.int8, row * stride, padded)
            round_blocks(y, to, array_at(args[3], types.float32, row * described, described))

    return kernel(round_rows)


@cache
def _product(bits: int, scales: int, offset: int, bf16: bool) -> Any:
    item = types.uint16 if bf16 else types.float32
    most, of_block = most_rows(), block_bytes(Format.of(bits, scales, offset))

    def product(args, piece):
        rows, inner, outer, stride = args[_ROWS], args[_INNER], args[_OUTER], args[_STRIDE]
        steps = inner // BLOCK
        x, records = pointer(args[_X], types.int8), pointer(args[_RECORDS], types.float32)
        weight = pointer(args[_WEIGHT], types.uint8)
        strips, sums = (outer + STRIP - 1) // STRIP, np.empty(most * STRIP, np.float32)
        blocks, groups = args[_BLOCKS], args[_GROUPS]
        block, group = piece // groups, piece % groups
        begin, end = rows * block // blocks, rows * (block + 1) // blocks
        tiles = (end - begin + most - 1) // most
        for strip in range(strips * group // groups, strips * (group + 1) // groups):
            columns = min(STRIP, outer - strip * STRIP)
            bias = array_at(args[_BIAS], types.float32, strip * STRIP, columns)
            for tile in range(tiles):
                first = begin + (end - begin) * tile // tiles
                count = begin + (end - begin) * (tile + 1) // tiles - first
                multiply_blocks(
                    advance(x, first * stride), stride, advance(records, first * steps * RECORD), steps * RECORD,
                    advance(weight, strip * steps * of_block), steps, address(sums, 0), args[_AHEAD],
                    count,
                    most, bits, scales, offset,
                )  # fmt: skip
                for row in range(count):
                    of_row = sums[row * STRIP : row * STRIP + columns]
                    for column in range(columns):
                        of_row[column] += bias[column]
                    write_row(of_row, array_at(args[_OUT], item, (first + row) * outer + strip * STRIP, columns), bf16)

    return kernel(product)


def expanded(strips: torch.Tensor, form: Format, dtype: torch.dtype) -> torch.Tensor:
    """Returns strips as float32 or bfloat16, in the layout of ``matmul.lay_out``."""
    step = 2 if dtype == torch.bfloat16 else 1
    count, blocks = strips.shape[:2]
    floats = torch.empty((count, blocks * BLOCK // step, STRIP, step), dtype=dtype)
    share_rows(_expansion(*form.literals, dtype == torch.bfloat16), (floats, strips), count, blocks)
    return floats


@cache
def _expansion(bits: int, scales: int, offset: int, bf16: bool) -> Any:
    item, of_block = types.uint16 if bf16 else types.float32, block_bytes(Format.of(bits, scales, offset))

    def expand(args, piece):
        strips, pieces, blocks = args[3], args[4], args[5]
        to, weight = pointer(args[1], item), pointer(args[2], types.uint8)
        for block in range(strips * piece // pieces * blocks, strips * (piece + 1) // pieces * blocks):
            expand_block(advance(weight, block * of_block), advance(to, block * BLOCK * STRIP), bits, scales, offset)

    return kernel(expand)


def look_up(
    ids: torch.Tensor, strips: torch.Tensor, form: Format, inner: int, scale: float, dtype: torch.dtype
) -> torch.Tensor:
    """Returns the rows ``ids [...]`` of a weight, multiplied by ``scale``: ``[..., in]``."""
    ids = ids.contiguous()
    out = torch.empty((*ids.shape, inner), dtype=dtype)
    compute = _look_up(*form.literals, dtype == torch.bfloat16)
    share_rows(compute, (out, ids, strips), ids.numel(), inner, strips.shape[1], float_bits(scale))
    return out


@cache
def _look_up(bits: int, scales: int, offset: int, bf16: bool) -> Any:
    item, of_block = types.uint16 if bf16 else types.float32, block_bytes(Format.of(bits, scales, offset))

    def look_up(args, piece):
        rows, pieces, inner, blocks, scale = args[4], args[5], args[6], args[7], np.float32(float_from_bits(args[8]))
        weight, floats = pointer(args[3], types.uint8), np.empty(BLOCK * STRIP, np.float32)
        y = np.empty(blocks * BLOCK, np.float32)
        for row in range(rows * piece // pieces, rows * (piece + 1) // pieces):
            token = array_at(args[2], types.int64, row, 1)[0]
            for block in range(blocks):
                at = advance(weight, (token // STRIP * blocks + block) * of_block)
                expand_block(at, address(floats, 0), bits, scales, offset)
                for i in range(BLOCK):
                    y[block * BLOCK + i] = floats[i * STRIP + token % STRIP] * scale
            write_row(y[:inner], array_at(args[1], item, row * inner, inner), bf16)

    return kernel(look_up)
