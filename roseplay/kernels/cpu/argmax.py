"""The index of the largest logit of each row, in explicit vectors."""

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

from roseplay.kernels.cpu.rows import share_rows, takes
from roseplay.kernels.cpu.simd import INT, INTS, LANES, Emitter, advance, array_at, kernel, pointer

# For order keys (see ``_order``): the number of int32 below that of -inf before the shift, and the key of +inf.
_SHIFT, _INFINITY = 0x7FFFFF, 0x7F800000 - 0x7FFFFF


def argmax(x: torch.Tensor) -> torch.Tensor:
    """Returns the index of each row's first largest number, int64 ``[rows]``, of ``x [rows, columns]``.

    As ``x.argmax(-1)``, but -1 for a row with a NaN, with +inf, or with nothing but -inf.
    """
    x = x.contiguous()
    out = torch.empty(x.shape[0], dtype=torch.int64)
    share_rows(_argmax(x.dtype == torch.bfloat16), (x, out), *x.shape)
    return out


def can_argmax(x: torch.Tensor) -> bool:
    """Returns whether ``argmax`` takes a tensor."""
    return x.device.type == "cpu" and takes(x.dtype)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _largest(context, at, numbers):
    """Returns the largest order key (see ``_order``) of ``numbers`` numbers, a literal and a multiple of 16."""
    bf16 = at.dtype.bitwidth == 16
    count = numbers.literal_value // LANES

    def generate(context, builder, signature, args):
        emit, b = Emitter(builder), builder
        best = cgutils.alloca_once_value(b, ir.Constant(INTS, [-(2**31)] * LANES))
        with cgutils.for_range(b, ir.Constant(ir.IntType(64), count)) as loop:
            place = b.gep(args[0], [b.mul(loop.index, ir.Constant(ir.IntType(64), LANES))])
            x = emit.load(place, 0, ir.IntType(16) if bf16 else INT, LANES)
            x = b.shl(b.zext(x, INTS), ir.Constant(INTS, [16] * LANES)) if bf16 else x
            sign = b.ashr(x, ir.Constant(INTS, [31] * LANES))
            x = b.xor(x, b.and_(sign, ir.Constant(INTS, [0x7FFFFFFF] * LANES)))
            x = b.sub(x, ir.Constant(INTS, [_SHIFT] * LANES))
            so_far = b.load(best)
            b.store(b.select(b.icmp_signed(">", x, so_far), x, so_far), best)
        kind = ir.FunctionType(INT, [INTS])
        reduce = cgutils.get_or_insert_function(b.module, kind, f"llvm.vector.reduce.smax.v{LANES}i32")
        return b.call(reduce, [b.load(best)])

    return types.int32(at, numbers), generate


# Not a closure of the kernel: Numba's cache does not recognise kernels that hold functions.
@numba.njit(inline="always")
def _order(bits, bf16):
    """Returns the order key of a number: an integer that compares as the number does. -inf has -2**31, +inf
    ``_INFINITY``, and every NaN a larger one.

    As integers, the bits of floats compare as the floats do, except that negative ones are in reverse. The shift moves
    the NaNs with a sign bit, which come before -inf, past the largest int32.
    """
    wide = np.int64(bits) << 16 if bf16 else np.int64(bits)
    wide = (wide ^ 0x7FFFFFFF if wide < 0 else wide) - _SHIFT
    return wide + 2**32 if wide < -(2**31) else wide


@cache
def _argmax(bf16: bool) -> Any:
    item = types.int16 if bf16 else types.int32
    chunk = 64 * LANES

    def argmax(args, piece):
        rows, pieces, columns = args[3], args[4], args[5]
        out = array_at(args[2], types.int64, 0, rows)
        for row in range(rows * piece // pieces, rows * (piece + 1) // pieces):
            begin = advance(pointer(args[1], item), row * columns)
            x = numba.carray(begin, columns)
            best, at = np.int64(-(2**40)), 0
            whole = columns // chunk * chunk
            for first in range(0, whole, chunk):
                highest = np.int64(_largest(advance(begin, first), chunk))
                if highest > best:
                    best, at = highest, first
            for i in range(whole, columns):
                if _order(x[i], bf16) > best:
                    best, at = _order(x[i], bf16), i
            while _order(x[at], bf16) != best:
                at += 1
            out[row] = at if -(2**31) < best < _INFINITY else -1

    return kernel(argmax)
