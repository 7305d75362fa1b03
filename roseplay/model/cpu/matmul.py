"""Products of a few rows with a weight, in explicit vectors, for CPUs whose vectors have 512 bits.

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
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from roseplay.model.cpu.lanes import FLOAT, FLOATS, INT, INTS, LANES, Emitter, address, compiled_c, moved, pointer
from roseplay.model.cpu.parallel import share_out

STRIP = 2 * LANES  # outputs
# Rows of a tile. Its sums, the strip's two vectors and one of x fill the 32 registers; LLVM wants more of them for float32.
_TILES = {torch.float32: 9, torch.bfloat16: 12}
_TILES_OF_BLOCK = 8  # rows of x that are multiplied by one strip after the other: they stay in the second-level cache
_AHEAD = 4096  # bytes: where one tile is all, the strip itself is asked for so much before it is needed
_ALONE_BYTES = 2**16  # of a weight whose product takes less time than it takes to wake other threads

# What the kernel is told, by number: addresses, then sizes. The first one is its own.
_KERNEL, _X, _WEIGHT, _BIAS, _OUT, _ROWS, _INNER, _OUTER, _PIECES = range(9)


@cache
def available(dtype: torch.dtype) -> bool:
    """Whether this CPU is one of those that this file is for. Where it has AMX, oneDNN multiplies bfloat16 with that."""
    if numba.config.CPU_NAME or numba.config.CPU_FEATURES or dtype not in _TILES:
        return False
    has = binding.get_host_cpu_features()
    if dtype == torch.float32:
        return bool(has.get("avx512f"))
    return bool(has.get("avx512bf16") and not has.get("amx-bf16"))


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
    weight_bytes = strips.numel() * strips.element_size()
    pieces = 1 if weight_bytes * max(rows // 8, 1) < _ALONE_BYTES else torch.get_num_threads()
    kernel = _kernel(x.dtype).address
    places = [x.data_ptr(), strips.data_ptr(), bias.data_ptr(), out.data_ptr()]
    share_out([kernel, *places, rows, inner, outer, pieces], pieces)
    return out


@cache
def _kernel(dtype: torch.dtype) -> Any:
    """A share of the strips times all rows of x."""
    narrow, most = dtype == torch.bfloat16, _TILES[dtype]
    item, bits = (types.uint16, np.uint16) if narrow else (types.float32, np.float32)
    step, block, ahead = 2 if narrow else 1, _TILES_OF_BLOCK * most, _AHEAD // (2 if narrow else 4)

    def product(given, piece):
        rows, inner, outer = given[_ROWS], given[_INNER], given[_OUTER]
        x, weight = pointer(given[_X], item), pointer(given[_WEIGHT], item)
        bias, out = pointer(given[_BIAS], types.float32), pointer(given[_OUT], item)
        strips, size = (outer + STRIP - 1) // STRIP, inner * STRIP
        spare = np.empty(most * STRIP, bits)
        for begin in range(0, rows, block):
            here = min(block, rows - begin)
            tiles = (here + most - 1) // most
            for strip in range(strips * piece // given[_PIECES], strips * (piece + 1) // given[_PIECES]):
                columns = min(STRIP, outer - strip * STRIP)
                for tile in range(tiles):
                    first = begin + here * tile // tiles
                    count = begin + here * (tile + 1) // tiles - first
                    to = moved(out, first * outer + strip * STRIP)
                    # Each tile asks for its part of the next strip.
                    following = strip * size + (ahead if tiles == 1 else size + size * tile // tiles)
                    _tile(
                        moved(x, first * inner), inner, moved(weight, strip * size), moved(bias, strip * STRIP), inner // step,
                        to if columns == STRIP else address(spare, 0), outer if columns == STRIP else STRIP,
                        moved(weight, following), 64 // tiles + (tiles > 1), count, most,
                    )  # fmt: skip
                    if columns < STRIP:
                        _copy(numba.carray(to, (count - 1) * outer + columns), outer, spare, count, columns)

    return compiled_c(product, types.CPointer(types.int64), types.int64)


@numba.njit(inline="always")
def _copy(out, outer, spare, rows, columns):
    for row in range(rows):
        for column in range(columns):
            out[row * outer + column] = spare[row * STRIP + column]


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _tile(context, x, x_stride, weight, bias, steps, out, out_stride, ahead, line, rows, most):
    """``rows`` of x times one strip, plus the bias, into ``out``; at most ``most`` (a literal).

    A step is one number of a row, or two of bfloat16. For each cache line of the strip ``line`` bytes more are asked for,
    from ``ahead`` on.
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

    return types.void(x, x_stride, weight, bias, steps, out, out_stride, ahead, line, rows, most), generate


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

    def write(self, x, x_stride, weight, bias, steps, out, out_stride, ahead, line):
        b = self.builder
        self.weight, self.line = b.bitcast(weight, self.word.as_pointer()), line
        self.ahead = b.bitcast(ahead, ir.IntType(8).as_pointer())
        starts = (b.gep(x, [b.mul(x_stride, self.whole(row))]) for row in range(self.rows))
        self.starts = [b.bitcast(start, self.word.as_pointer()) for start in starts]
        initial = [self.numbers(bias, LANES * i, FLOAT, LANES) for i in range(2)]
        # LLVM keeps these in registers.
        self.sums = [[cgutils.alloca_once_value(b, number) for number in initial] for _ in range(self.rows)]
        rounds = b.udiv(steps, self.whole(self.unrolled))
        with cgutils.for_range(b, rounds) as loop:
            begin = b.mul(loop.index, self.whole(self.unrolled))
            for number in range(self.unrolled):
                self.step(b.add(begin, self.whole(number)))
        begin = b.mul(rounds, self.whole(self.unrolled))
        with cgutils.for_range(b, b.sub(steps, begin)) as loop:
            self.step(b.add(begin, loop.index))
        for row, sums in enumerate(self.sums):
            for i, total in enumerate(sums):
                place = b.gep(out, [b.add(b.mul(out_stride, self.whole(row)), self.whole(LANES * i))])
                number = self.rounded(b.load(total)) if self.narrow else b.load(total)
                b.store(number, b.bitcast(place, number.type.as_pointer()), align=2)

    def step(self, at: Any) -> None:
        b = self.builder
        begin = b.gep(self.weight, [b.mul(at, self.whole(STRIP))])
        strip = [self.numbers(begin, LANES * i, self.word, LANES) for i in range(2)]
        for i in range(2):
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

    def rounded(self, x: Any) -> Any:
        """The bits of the nearest bfloat16, a tie to the even one."""
        b = self.builder
        bits, sixteen, one, half = (
            b.bitcast(x, INTS),
            *(ir.Constant(INTS, [number] * LANES) for number in (16, 1, 0x7FFF)),
        )
        bits = b.add(b.add(bits, b.and_(b.lshr(bits, sixteen), one)), half)
        return b.trunc(b.lshr(bits, sixteen), ir.VectorType(ir.IntType(16), LANES))

    @staticmethod
    def whole(number: int) -> Any:
        return ir.Constant(ir.IntType(64), number)
