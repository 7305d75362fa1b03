"""The largest logit of each row, in vectors."""

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

from roseplay.kernels.cpu.parallel import share_out
from roseplay.kernels.cpu.rows import is_light, pieces_of, takes
from roseplay.kernels.cpu.simd import INT, INTS, LANES, Emitter, kernel, moved, pointer

# Of float32: the numbers between -inf and the least integer, and the place of +inf when they are taken off (see ``_order``).
_SHIFT, _INFINITY = 0x7FFFFF, 0x7F800000 - 0x7FFFFF


def argmax(x: torch.Tensor) -> torch.Tensor:
    """The first of each row's largest numbers: int64 ``[rows]`` of ``x [rows, columns]``, as ``x.argmax(-1)``, in a fraction of
    its time; -1 for a row with a NaN, with +inf, or with nothing but -inf."""
    x = x.contiguous()
    out = torch.empty(x.shape[0], dtype=torch.int64)
    rows, pieces = pieces_of(x)
    share_out(
        _argmax(x.dtype == torch.bfloat16),
        [x.data_ptr(), out.data_ptr(), rows, pieces, x.shape[1]],
        pieces,
        light=is_light(x),
    )
    return out


def can_argmax(x: torch.Tensor) -> bool:
    return x.device.type == "cpu" and takes(x.dtype)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _largest(context, at, numbers):
    """The largest of so many numbers (a literal; whole vectors), as integers in order (see ``_order``)."""
    narrow = at.dtype.bitwidth == 16
    count = numbers.literal_value // LANES

    def generate(context, builder, signature, args):
        emit, b = Emitter(builder), builder
        best = cgutils.alloca_once_value(b, ir.Constant(INTS, [-(2**31)] * LANES))
        with cgutils.for_range(b, ir.Constant(ir.IntType(64), count)) as loop:
            place = b.gep(args[0], [b.mul(loop.index, ir.Constant(ir.IntType(64), LANES))])
            x = emit.numbers(place, 0, ir.IntType(16) if narrow else INT, LANES)
            x = b.shl(b.zext(x, INTS), ir.Constant(INTS, [16] * LANES)) if narrow else x
            sign = b.ashr(x, ir.Constant(INTS, [31] * LANES))
            x = b.xor(x, b.and_(sign, ir.Constant(INTS, [0x7FFFFFFF] * LANES)))
            x = b.sub(x, ir.Constant(INTS, [_SHIFT] * LANES))
            so_far = b.load(best)
            b.store(b.select(b.icmp_signed(">", x, so_far), x, so_far), best)
        kind = ir.FunctionType(INT, [INTS])
        reduce = cgutils.get_or_insert_function(b.module, kind, f"llvm.vector.reduce.smax.v{LANES}i32")
        return b.call(reduce, [b.load(best)])

    return types.int32(at, numbers), generate


@numba.njit(inline="always")  # outside of what calls it: compiled code that holds on to a function is not found again
def _order(bits, narrow):
    """A number's place in order, from -2**31, which is -inf's, over ``_INFINITY`` to those of NaN, which all come behind.

    As integers, the bits of numbers are in order but for the negative ones, which run the other way. The shift then moves
    the NaNs with a sign, which lie before -inf, past the largest integer.
    """
    wide = np.int64(bits) << 16 if narrow else np.int64(bits)
    wide = (wide ^ 0x7FFFFFFF if wide < 0 else wide) - _SHIFT
    return wide + 2**32 if wide < -(2**31) else wide


@cache
def _argmax(narrow: bool) -> Any:
    item = types.int16 if narrow else types.int32
    stretch = 64 * LANES

    def argmax(given, piece):
        x_at, rows, pieces, columns = given[1], given[3], given[4], given[5]
        out = numba.carray(pointer(given[2], types.int64), rows)
        for row in range(rows * piece // pieces, rows * (piece + 1) // pieces):
            begin = moved(pointer(x_at, item), row * columns)
            x = numba.carray(begin, columns)
            best, at = np.int64(-(2**40)), 0
            whole = columns // stretch * stretch
            for first in range(0, whole, stretch):
                highest = np.int64(_largest(moved(begin, first), stretch))
                if highest > best:
                    best, at = highest, first
            for i in range(whole, columns):
                if _order(x[i], narrow) > best:
                    best, at = _order(x[i], narrow), i
            while _order(x[at], narrow) != best:
                at += 1
            out[row] = at if -(2**31) < best < _INFINITY else -1

    return kernel(argmax)
