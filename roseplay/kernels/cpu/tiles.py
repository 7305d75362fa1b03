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

from roseplay.kernels.cpu.simd import FLOAT, FLOATS, INT, LANES, Emitter

STRIP = 2 * LANES  # outputs
binding.initialize_native_asmparser()

MOST_ROWS = 12  # of a tile: its sums and two vectors of the strip are 26 of the 32 registers
_DTYPES = (torch.float32, torch.bfloat16)


@cache
def available(dtype: torch.dtype) -> bool:
    """Whether this CPU is one of those that this file is for. Where it has AMX, oneDNN multiplies bfloat16 with that."""
    if numba.config.CPU_NAME or numba.config.CPU_FEATURES or not numba.config.ENABLE_AVX or dtype not in _DTYPES:
        return False
    has = binding.get_host_cpu_features()
    if dtype == torch.float32:
        return bool(has.get("avx512f"))
    return bool(has.get("avx512bf16") and not has.get("amx-bf16"))


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def multiply_rows(context, x, x_stride, strip, begin, begin_stride, steps, out, out_stride, ahead, line, rows, most):
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
                _Tile(builder, count, bf16=x.dtype.bitwidth == 16).write(*places)
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(
        x, x_stride, strip, begin, begin_stride, steps, out, out_stride, ahead, line, rows, most
    ), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def multiply_tile(context, x, x_stride, strip, begin, begin_stride, steps, out, out_stride, rows):
    """The same for ``rows`` (a literal), where memory is near and nothing need be asked for."""

    def generate(context, builder, signature, args):
        _Tile(builder, rows.literal_value, bf16=x.dtype.bitwidth == 16).write(*args[:-1])
        return context.get_dummy_value()

    return types.void(x, x_stride, strip, begin, begin_stride, steps, out, out_stride, rows), generate


class _Tile(Emitter):
    """The instructions for so many rows; ``bf16`` is bfloat16.

    The inner loop is spelled out in assembler: of the same instructions LLVM makes one that runs out of registers.
    """

    def __init__(self, builder: Any, rows: int, bf16: bool) -> None:
        super().__init__(builder)
        self.rows, self.bf16 = rows, bf16
        self.unrolled = 4 if rows <= 4 else 2

    def write(self, x, x_stride, strip, begin, begin_stride, steps, out, out_stride, ahead=None, line=None):
        b = self.builder
        self.strip, self.line = b.bitcast(strip, INT.as_pointer()), line
        self.ahead = ahead and b.bitcast(ahead, ir.IntType(8).as_pointer())
        starts = (b.gep(x, [b.mul(x_stride, self.whole(row))]) for row in range(0, self.rows, 3))
        self.starts = [b.bitcast(start, INT.as_pointer()) for start in starts]
        self.row_bytes = b.mul(x_stride, self.whole(2 if self.bf16 else 4))
        self.sums = []  # LLVM keeps them in registers
        for row in range(self.rows):
            initial = b.gep(begin, [b.mul(begin_stride, self.whole(row))])
            numbers = (self.load(initial, LANES * i, FLOAT, LANES) for i in range(2))
            self.sums += [cgutils.alloca_once_value(b, number) for number in numbers]
        rounds = b.udiv(steps, self.whole(self.unrolled))
        with cgutils.for_range(b, rounds) as loop:
            self.steps(b.mul(loop.index, self.whole(self.unrolled)), self.unrolled)
        first = b.mul(rounds, self.whole(self.unrolled))
        with cgutils.for_range(b, b.sub(steps, first)) as loop:
            self.steps(b.add(first, loop.index), 1)
        for number, total in enumerate(self.sums):
            row, half = divmod(number, 2)
            place = b.gep(out, [b.add(b.mul(out_stride, self.whole(row)), self.whole(LANES * half))])
            found = self.rounded(b.load(total)) if out.type.pointee == ir.IntType(16) else b.load(total)
            b.store(found, b.bitcast(place, found.type.as_pointer()), align=2)

    def steps(self, first: Any, count: int) -> None:
        """``count`` steps from the ``first`` one on."""
        b = self.builder
        for i in range(2 * count if self.ahead else 0):
            number = b.add(b.mul(first, self.whole(2)), self.whole(i))
            self.prefetch(b.gep(self.ahead, [b.mul(number, self.line)]))
        places = [b.gep(self.strip, [b.mul(first, self.whole(STRIP))])]
        places += [b.gep(start, [first]) for start in self.starts]
        results = self.multiply_add([*(b.load(total) for total in self.sums), *places, self.row_bytes], count)
        for number, total in enumerate(self.sums):
            b.store(b.extract_value(results, number), total)

    def multiply_add(self, given: list[Any], count: int) -> Any:
        """The sums and two vectors of the strip, after ``count`` steps.

        ``given`` has the sums, where the strip begins, where every third row of x does, and how many bytes there are from
        row to row. A row's number is loaded into all lanes by the instruction that multiplies it.
        """
        sums = len(self.sums)
        outputs = sums + 2
        vectors, strip, starts = (
            (sums, sums + 1),
            f"${outputs + sums}",
            range(outputs + sums + 1, outputs + len(given) - 1),
        )
        stride = f"${outputs + len(given) - 1}"
        row_places = [f"(${starts[row // 3]}{('', f',{stride}', f',{stride},2')[row % 3]})" for row in range(self.rows)]
        name = "vdpbf16ps" if self.bf16 else "vfmadd231ps"
        lines = []
        for step in range(count):
            lines += [f"vmovups {128 * step + 64 * i}({strip}), ${vectors[i]}" for i in range(2)]
            lines += [
                f"{name} {4 * step}{place}{{1to16}}, ${vectors[i]}, ${2 * row + i}"
                for row, place in enumerate(row_places)
                for i in range(2)
            ]
        constraints = ["=v"] * sums + ["=&v"] * 2 + [str(i) for i in range(sums)] + ["r"] * (len(given) - sums)
        kind = ir.FunctionType(ir.LiteralStructType([FLOATS] * outputs), [value.type for value in given])
        constraints.append("~{memory}")
        return self.builder.asm(kind, "\n".join(lines), ",".join(constraints), given, side_effect=True)

    @staticmethod
    def whole(number: int) -> Any:
        return ir.Constant(ir.IntType(64), number)
