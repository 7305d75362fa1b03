"""Products of rows with a weight, in explicit vectors, for CPUs whose vectors have 512 bits.

A decode step multiplies every weight by a handful of rows, which should take as long as reading the weight does. The
weight is laid out in strips of 32 outputs, in the order in which it is read. A tile of some rows and one strip stays in
registers from the first number to the last, so nothing is written but the result; and while the tiles of one strip are
computed the next strip is asked for, so that memory is read all the time. A row's numbers are added up in one order
however many rows there are: what a request is answered does not depend on who else is in its step.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.parallel import share_out
from roseplay.kernels.cpu.rows import copy_row
from roseplay.kernels.cpu.simd import address, advance, kernel, pointer
from roseplay.kernels.cpu.tiles import MOST_ROWS, STRIP, available, multiply_rows

# Rows of x that are multiplied by one strip after the other: together they stay in the second-level cache.
_TILES_OF_BLOCK, _BLOCK_BYTES = 8, 2**19
_LINE = 64  # bytes
# Rows this far apart fall into few places of a first-level cache, where those of a tile would push each other out.
_COLLIDING_BYTES, _FEW_ROWS = 2048, 4
_AHEAD = 4096  # bytes: where one tile is all, the strip itself is asked for so much before it is needed
_ALONE_BYTES = 2**14  # of a weight whose product is over before another thread has begun
_PIECES_A_THREAD = 8

# What the kernel is told, by number: addresses, then sizes. The first one is its own.
_KERNEL, _X, _WEIGHT, _BIAS, _OUT, _ROWS, _INNER, _OUTER, _BLOCKS, _GROUPS = range(10)


def fits(weight: torch.Tensor) -> bool:
    """Whether a weight ``[out, in]`` can be laid out: float32, or bfloat16 of an even ``in``."""
    return available(weight.dtype) and (weight.dtype == torch.float32 or weight.shape[1] % 2 == 0)


def lay_out(weight: torch.Tensor) -> torch.Tensor:
    """``weight [out, in]`` as strips ``[strips, in, 32]``, in bfloat16 of pairs ``[strips, in / 2, 32, 2]``; a copy."""
    outer, inner = weight.shape
    step = 2 if weight.dtype == torch.bfloat16 else 1
    strips = torch.zeros((-(-outer // STRIP), inner // step, STRIP, step), dtype=weight.dtype)
    for strip, rows in zip(strips, weight.split(STRIP), strict=True):
        strip[:, : len(rows)] = rows.reshape(len(rows), -1, step).transpose(0, 1)
    return strips


def multiply(x: torch.Tensor, strips: torch.Tensor, bias: torch.Tensor, outer: int) -> torch.Tensor:
    """``x [..., in]`` times a weight that was laid out, plus ``bias``, rounded once: ``[..., outer]``.

    Args:
        bias: float32, as long as the strips are wide, zeros where there is none.

    Raises ``RuntimeError`` where the dtype or the last size of x is another one than the weight's.
    """
    inner = strips.shape[1] * strips.shape[3]
    if x.dtype != strips.dtype or x.shape[-1] != inner:
        raise RuntimeError(f"x is {x.dtype} {list(x.shape)}, the weight {strips.dtype} [{outer}, {inner}]")
    x = x.contiguous()
    out = torch.empty((*x.shape[:-1], outer), dtype=x.dtype)
    rows = x.numel() // inner
    blocks, groups = _cut(rows, strips)
    places = [x.data_ptr(), strips.data_ptr(), bias.data_ptr(), out.data_ptr()]
    share_out(_product(x.dtype), [*places, rows, inner, outer, blocks, groups], blocks * groups)
    return out


def _cut(rows: int, strips: torch.Tensor) -> tuple[int, int]:
    """Into how many blocks of rows and groups of strips a product is cut, for threads to take: blocks that stay in the
    second-level cache, and no more groups than keep all threads busy, because each reads its block's rows anew."""
    threads, bytes_of_row = torch.get_num_threads(), strips[0].numel() // STRIP * strips.element_size()
    tiles = max(1, min(_TILES_OF_BLOCK, _BLOCK_BYTES // (MOST_ROWS * bytes_of_row)))
    blocks = max(1, -(-rows // (tiles * MOST_ROWS)))
    if threads == 1 or strips.numel() * strips.element_size() * max(rows // 8, 1) < _ALONE_BYTES:
        return blocks, 1
    return blocks, min(len(strips), -(-_PIECES_A_THREAD * threads // blocks))


@cache
def _product(dtype: torch.dtype) -> Any:
    """One block of rows times one group of strips."""
    bf16, most = dtype == torch.bfloat16, MOST_ROWS
    item, bits = (types.uint16, np.uint16) if bf16 else (types.float32, np.float32)
    step, size_of = (2, 2) if bf16 else (1, 4)
    ahead, apart = _AHEAD // size_of, _LINE // size_of

    def product(given, piece):
        rows, inner, outer = given[_ROWS], given[_INNER], given[_OUTER]
        x, weight = pointer(given[_X], item), pointer(given[_WEIGHT], item)
        bias, out = pointer(given[_BIAS], types.float32), pointer(given[_OUT], item)
        strips, size = (outer + STRIP - 1) // STRIP, inner * STRIP
        spare = np.empty(most * STRIP, bits)
        blocks, groups = given[_BLOCKS], given[_GROUPS]
        block, group = piece // groups, piece % groups
        begin = rows * block // blocks
        here = rows * (block + 1) // blocks - begin
        tiles = (here + most - 1) // most
        of_block, stride = advance(x, begin * inner), inner
        collide = inner * size_of % _COLLIDING_BYTES == 0 and here > _FEW_ROWS
        moved_apart = np.empty(here * (inner + apart) if collide else 1, bits)
        if collide:
            stride = inner + apart
            for row in range(here):
                copy_row(
                    numba.carray(advance(of_block, row * inner), inner),
                    moved_apart[row * stride : row * stride + inner],
                )
        for strip in range(strips * group // groups, strips * (group + 1) // groups):
            columns = min(STRIP, outer - strip * STRIP)
            for tile in range(tiles):
                first = here * tile // tiles
                count = here * (tile + 1) // tiles - first
                to = advance(out, (begin + first) * outer + strip * STRIP)
                # Each tile asks for its part of the next strip.
                following = strip * size + (ahead if tiles == 1 else size + size * tile // tiles)
                multiply_rows(
                    # Numba lets an array go behind the last line that names it.
                    address(moved_apart, first * stride) if collide else advance(of_block, first * stride), stride, advance(weight, strip * size), advance(bias, strip * STRIP), 0,
                    inner // step, to if columns == STRIP else address(spare, 0), outer if columns == STRIP else STRIP,
                    advance(weight, following), 64 // tiles + (tiles > 1), count, most,
                )  # fmt: skip
                if columns < STRIP:
                    _copy(numba.carray(to, (count - 1) * outer + columns), outer, spare, count, columns)

    return kernel(product)


@numba.njit(inline="always")
def _copy(out, outer, spare, rows, columns):
    for row in range(rows):
        for column in range(columns):
            out[row * outer + column] = spare[row * STRIP + column]
