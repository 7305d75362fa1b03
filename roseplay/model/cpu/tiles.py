"""A few rows times one strip of 32 outputs: the innermost part of every product, in AVX-512's registers.

A strip is ``[steps, 32]`` of float32, or ``[steps, 32, 2]`` of bfloat16, of which two numbers are multiplied at once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import torch
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from roseplay.model.cpu.lanes import FLOAT, FLOATS, INT, INTS, LANES, Emitter

STRIP = 2 * LANES  # outputs
# Rows of a tile. Its sums, the strip's two vectors and one of x fill the 32 registers; LLVM wants more of them for float32.
MOST_ROWS = {torch.float32: 9, torch.bfloat16: 12}


@cache
def available(dtype: torch.dtype) -> bool:
    """Whether this CPU is one of those that this file is for. Where it has AMX, oneDNN multiplies bfloat16 with that."""
    if numba.config.CPU_NAME or numba.config.CPU_FEATURES or dtype not in MOST_ROWS:
        return False
    has = binding.get_host_cpu_features()
    if dtype == torch.float32:
        return bool(has.get("avx512f"))
    return bool(has.get("avx512bf16") and not has.get("amx-bf16"))


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_of(context, x, x_stride, strip, begin, begin_stride, steps, out, out_stride, ahead, line, rows, most):
    """``rows`` of x times a strip, plus rows of ``begin``, into ``out``; at most ``most`` (a literal).

    Strides are numbers from row to row. ``begin`` is float32; bfloat16 (as uint16) is rounded to in the end where ``out``
    is that. For each cache line of the strip ``line`` bytes more are asked for, from ``ahead`` on.
    """

    def generate(context, builder, signature, args):
        *places, rows = args[:-1]
        done = builder.append_basic_block("done")
        choice = builder.switch(rows, done)
        for count in range(1, most.literal_value + 1):
            block = builder.append_basic_block(f"rows_{count}")
            choice.add_case(ir.Constant(rows.type, count), block)
            with builder.goto_block(block):
                _Tile(builder, count, narrow=x.dtype.bitwidth == 16).write(*places)
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(
        x, x_stride, strip, begin, begin_stride, steps, out, out_stride, ahead, line, rows, most
    ), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def whole_tile(context, x, x_stride, strip, begin, begin_stride, steps, out, out_stride, rows):
    """The same for ``rows`` (a literal), where memory is near and nothing need be asked for."""

    def generate(context, builder, signature, args):
        _Tile(builder, rows.literal_value, narrow=x.dtype.bitwidth == 16).write(*args[:-1])
        return context.get_dummy_value()

    return types.void(x, x_stride, strip, begin, begin_stride, steps, out, out_stride, rows), generate


class _BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_PAIRS = ir.VectorType(_BFloat(), STRIP)


class _Tile(Emitter):
    """The instructions for so many rows; ``narrow`` is bfloat16."""

    def __init__(self, builder: Any, rows: int, narrow: bool) -> None:
        super().__init__(builder)
        self.rows, self.narrow = rows, narrow
        self.word, self.vector = (INT, INTS) if narrow else (FLOAT, FLOATS)
        self.unrolled = 4 if rows <= 4 else 2

    def write(self, x, x_stride, strip, begin, begin_stride, steps, out, out_stride, ahead=None, line=None):
        b = self.builder
        self.strip, self.line = b.bitcast(strip, self.word.as_pointer()), line
        self.ahead = ahead and b.bitcast(ahead, ir.IntType(8).as_pointer())
        starts = (b.gep(x, [b.mul(x_stride, self.whole(row))]) for row in range(self.rows))
        self.starts = [b.bitcast(start, self.word.as_pointer()) for start in starts]
        self.sums = []  # LLVM keeps them in registers
        for row in range(self.rows):
            initial = b.gep(begin, [b.mul(begin_stride, self.whole(row))])
            numbers = (self.numbers(initial, LANES * i, FLOAT, LANES) for i in range(2))
            self.sums.append([cgutils.alloca_once_value(b, number) for number in numbers])
        rounds = b.udiv(steps, self.whole(self.unrolled))
        with cgutils.for_range(b, rounds) as loop:
            first = b.mul(loop.index, self.whole(self.unrolled))
            for number in range(self.unrolled):
                self.step(b.add(first, self.whole(number)))
        first = b.mul(rounds, self.whole(self.unrolled))
        with cgutils.for_range(b, b.sub(steps, first)) as loop:
            self.step(b.add(first, loop.index))
        for row, sums in enumerate(self.sums):
            for i, total in enumerate(sums):
                place = b.gep(out, [b.add(b.mul(out_stride, self.whole(row)), self.whole(LANES * i))])
                number = self.rounded(b.load(total)) if out.type.pointee == ir.IntType(16) else b.load(total)
                b.store(number, b.bitcast(place, number.type.as_pointer()), align=2)

    def step(self, at: Any) -> None:
        b = self.builder
        begin = b.gep(self.strip, [b.mul(at, self.whole(STRIP))])
        strip = [self.numbers(begin, LANES * i, self.word, LANES) for i in range(2)]
        for i in range(2 if self.ahead else 0):
            number = b.add(b.mul(at, self.whole(2)), self.whole(i))
            # Of few rows memory is all: into the first-level cache. Of more, the next strip is not needed so soon.
            self.prefetch(b.gep(self.ahead, [b.mul(number, self.line)]), level=1 if self.rows <= 4 else 2)
        for start, sums in zip(self.starts, self.sums, strict=True):
            number = self.all(b.load(b.gep(start, [at]), align=2))
            for total, numbers in zip(sums, strip, strict=True):
                b.store(self.multiply_add(numbers, number, b.load(total)), total)

    def multiply_add(self, x: Any, y: Any, total: Any) -> Any:
        if not self.narrow:
            return self.fma(x, y, total)
        pairs = (self.builder.bitcast(z, _PAIRS) for z in (x, y))
        return self.call("llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, total, *pairs)

    @staticmethod
    def whole(number: int) -> Any:
        return ir.Constant(ir.IntType(64), number)
