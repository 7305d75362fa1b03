"""Matrix products of a few rows with a weight, in explicit vectors, for CPUs with 512-bit vectors, AVX2 or NEON.

A decode step multiplies every weight by a few rows, which should take no longer than reading the weight. The weight is
laid out in strips of 32 outputs, in the order in which it is read. The sums of a tile, a few rows times one strip, stay
in registers until they are complete, and while the tiles of one strip are computed the next strip is prefetched, so that
memory is read all the time. The numbers of a row are added in the same order for any number of rows, so that a
request's tokens do not depend on the other requests in its step.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu import amx
from roseplay.kernels.cpu.features import has_amx
from roseplay.kernels.cpu.parallel import Work
from roseplay.kernels.cpu.rows import copy_row, copy_rows
from roseplay.kernels.cpu.simd import address, advance, kernel, pointer
from roseplay.kernels.cpu.tiles import STRIP, most_rows, multiply_rows
from roseplay.model import huge_pages

# The most tiles, and bytes, of a block of rows of x, which stays in the second-level cache while all strips are read.
_TILES_OF_BLOCK, _BLOCK_BYTES = 8, 2**19
_LINE = 64  # bytes
# Rows whose distance is a multiple of this map to few sets of the first-level cache, so that the rows of a tile would
# evict each other: more than a few are therefore copied with another distance.
_COLLIDING_BYTES, _FEW_ROWS = 2048, 4
_AHEAD = 4096  # bytes by which a single tile prefetches the strip itself ahead
_ALONE_BYTES = 2**14  # below this size of a weight, its product is done before another thread has started
_PIECES_A_THREAD = 8

# Indices of the kernel's arguments: addresses, its own first, then sizes.
_KERNEL, _X, _WEIGHT, _BIAS, _OUT, _ROWS, _INNER, _OUTER, _BLOCKS, _GROUPS = range(10)


def fits(weight: torch.Tensor) -> bool:
    """Returns whether a weight ``[out, in]`` can be laid out: float32, or bfloat16 with an even ``in``."""
    return most_rows(weight.dtype) > 0 and (weight.dtype == torch.float32 or weight.shape[1] % 2 == 0)


def lay_out(weight: torch.Tensor) -> torch.Tensor:
    """Copy ``weight [out, in]`` into strips: ``[strips, in, 32, 1]``, or ``[strips, in / 2, 32, 2]`` in bfloat16."""
    outer, inner = weight.shape
    step = 2 if weight.dtype == torch.bfloat16 else 1
    strips = huge_pages.zeros((-(-outer // STRIP), inner // step, STRIP, step), weight.dtype)
    for strip, rows in zip(strips, weight.split(STRIP), strict=True):
        strip[:, : len(rows)] = rows.reshape(len(rows), -1, step).transpose(0, 1)
    return strips


def multiply(
    x: torch.Tensor, strips: torch.Tensor, bias: torch.Tensor, outer: int, tiles_from: int | None = None
) -> torch.Tensor:
    """``x [..., in]`` times a weight, plus ``bias``, rounded once: ``[..., outer]``.

    Args:
        strips: the weight, as ``lay_out`` returns it.
        bias: float32 ``[32 * strips]``, padded with zeros.
        tiles_from: the fewest rows for which to use AMX's tiles, if the CPU has them; None for never. They need
            bfloat16 and an ``in`` that is a multiple of 32; everything else is multiplied in vectors.

    Raises ``RuntimeError`` if the dtype or the last size of x is not the weight's.
    """
    inner = strips.shape[1] * strips.shape[3]
    if x.dtype != strips.dtype or x.shape[-1] != inner:
        raise RuntimeError(f"x is {x.dtype} {list(x.shape)}, the weight {strips.dtype} [{outer}, {inner}]")
    x = x.contiguous()
    out = torch.empty((*x.shape[:-1], outer), dtype=x.dtype)
    rows = x.numel() // inner
    by_tiles = tiles_from is not None and rows >= tiles_from
    tiles = by_tiles and x.dtype == torch.bfloat16 and inner % amx.STEP == 0 and has_amx()
    blocks, groups = partition(rows, strips, amx.MOST_ROWS if tiles else most_rows(x.dtype))
    places = [x.data_ptr(), strips.data_ptr(), bias.data_ptr(), out.data_ptr()]
    kernel = _tile_product() if tiles else _product(x.dtype)
    Work(kernel, [*places, rows, inner, outer, blocks, groups], blocks * groups, reads=strips).run()
    return out


def partition(rows: int, strips: torch.Tensor, most: int) -> tuple[int, int]:
    """Returns the numbers of blocks of rows and of groups of strips that a product is split into; each pair is a piece
    of work. Blocks fit the second-level cache; groups are just enough to keep all threads busy, because each reads the
    rows of its block again."""
    threads, bytes_of_row = torch.get_num_threads(), strips[0].numel() // STRIP * strips.element_size()
    tiles = max(1, min(_TILES_OF_BLOCK, _BLOCK_BYTES // (most * bytes_of_row)))
    blocks = max(1, -(-rows // (tiles * most)))
    if threads == 1 or strips.numel() * strips.element_size() * max(rows // 8, 1) < _ALONE_BYTES:
        return blocks, 1
    return blocks, min(len(strips), -(-_PIECES_A_THREAD * threads // blocks))


@cache
def _product(dtype: torch.dtype) -> Any:
    """Returns the kernel; a piece of its work is one block of rows times one group of strips."""
    bf16, most = dtype == torch.bfloat16, most_rows(dtype)
    item, bits = (types.uint16, np.uint16) if bf16 else (types.float32, np.float32)
    step, size_of = (2, 2) if bf16 else (1, 4)
    ahead, gap = _AHEAD // size_of, _LINE // size_of

    def product(args, piece):
        rows, inner, outer = args[_ROWS], args[_INNER], args[_OUTER]
        x, weight = pointer(args[_X], item), pointer(args[_WEIGHT], item)
        bias, out = pointer(args[_BIAS], types.float32), pointer(args[_OUT], item)
        strips, size = (outer + STRIP - 1) // STRIP, inner * STRIP
        spare = np.empty(most * STRIP, bits)
        blocks, groups = args[_BLOCKS], args[_GROUPS]
        block, group = piece // groups, piece % groups
        begin = rows * block // blocks
        here = rows * (block + 1) // blocks - begin
        tiles = (here + most - 1) // most
        of_block, stride = advance(x, begin * inner), inner
        collide = inner * size_of % _COLLIDING_BYTES == 0 and here > _FEW_ROWS
        spread = np.empty(here * (inner + gap) if collide else 1, bits)
        if collide:
            stride = inner + gap
            for row in range(here):
                copy_row(
                    numba.carray(advance(of_block, row * inner), inner), spread[row * stride : row * stride + inner]
                )
        for strip in range(strips * group // groups, strips * (group + 1) // groups):
            columns = min(STRIP, outer - strip * STRIP)
            for tile in range(tiles):
                first = here * tile // tiles
                count = here * (tile + 1) // tiles - first
                to = advance(out, (begin + first) * outer + strip * STRIP)
                # Each tile prefetches its part of the next strip.
                following = strip * size + (ahead if tiles == 1 else size + size * tile // tiles)
                multiply_rows(
                    # Named here, because Numba frees an array after the last line that names it.
                    address(spread, first * stride) if collide else advance(of_block, first * stride), stride, advance(weight, strip * size), advance(bias, strip * STRIP), 0,
                    inner // step, to if columns == STRIP else address(spare, 0), outer if columns == STRIP else STRIP,
                    advance(weight, following), 64 // tiles + (tiles > 1), count, most,
                )  # fmt: skip
                if columns < STRIP:
                    copy_rows(spare, STRIP, numba.carray(to, (count - 1) * outer + columns), outer, count, columns)

    return kernel(product)


@cache
def _tile_product() -> Any:
    """Returns the same kernel for AMX's tiles, for bfloat16 with an ``inner`` that is a multiple of 32."""
    most = amx.MOST_ROWS

    def product(args, piece):
        rows, inner, outer = args[_ROWS], args[_INNER], args[_OUTER]
        x, weight = pointer(args[_X], types.uint16), pointer(args[_WEIGHT], types.uint16)
        bias, out = pointer(args[_BIAS], types.float32), pointer(args[_OUT], types.uint16)
        strips, size, steps = (outer + STRIP - 1) // STRIP, inner * STRIP, inner // amx.STEP
        config, configured = np.zeros(amx.CONFIG_BYTES, np.uint8), 0
        sums, spare = np.empty(most * STRIP, np.float32), np.empty(most * STRIP, np.uint16)
        blocks, groups = args[_BLOCKS], args[_GROUPS]
        block, group = piece // groups, piece % groups
        begin, end = rows * block // blocks, rows * (block + 1) // blocks
        for strip in range(strips * group // groups, strips * (group + 1) // groups):
            columns, at = min(STRIP, outer - strip * STRIP), advance(weight, strip * size)
            for first in range(begin, end, most):
                count = min(most, end - first)
                tile, to = advance(x, first * inner), advance(out, first * outer + strip * STRIP)
                # The first rows read the strip from memory, all others from a cache.
                configured = amx.multiply_rows(
                    config, configured, tile, 2 * inner, at, steps, address(sums, 0), count, first == begin
                )
                whole = columns == STRIP
                amx.finish(
                    address(sums, 0), advance(bias, strip * STRIP), to if whole else address(spare, 0),
                    outer if whole else STRIP, count,
                )  # fmt: skip
                if not whole:
                    copy_rows(spare, STRIP, numba.carray(to, (count - 1) * outer + columns), outer, count, columns)
        amx.release()

    return kernel(product)
