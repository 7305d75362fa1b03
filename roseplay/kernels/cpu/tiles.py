"""Multiplies a few rows by one strip of 32 outputs, the innermost part of every product, in AVX-512, AVX2 or NEON.

A strip is float32 ``[steps, 32]``, or bfloat16 ``[steps, 32, 2]``, where an instruction multiplies two numbers a lane.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from roseplay.kernels.cpu.features import has, has_neon
from roseplay.kernels.cpu.simd import FLOAT, INT, LANES, Emitter, by_count

STRIP = 2 * LANES  # outputs
binding.initialize_native_asmparser()

MOST_ROWS = 12  # of a tile: its sums and two vectors of the strip are 26 of the 32 registers
_MOST_ROWS_NARROW = 3
_DTYPES = (torch.float32, torch.bfloat16)


@cache
def available(dtype: torch.dtype) -> bool:
    """Returns whether this CPU has the instructions for a dtype in 512-bit vectors."""
    return dtype in _DTYPES and has("avx512f" if dtype == torch.float32 else "avx512bf16")


@cache
def most_rows(dtype: torch.dtype) -> int:
    """Returns the most rows of a tile of this dtype on this CPU; 0 if ``multiply_rows`` has no instructions for it."""
    if available(dtype):
        return MOST_ROWS
    return _MOST_ROWS_NARROW if dtype == torch.float32 and (has("avx2", "fma") or has_neon()) else 0


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def multiply_rows(
    context, x, x_stride, strip, initial, initial_stride, steps, out, out_stride, ahead, line, rows, most
):
    """Write ``rows`` rows of x times a strip, plus the rows of ``initial``, to ``out``; at most ``most`` (a literal) rows.

    Strides are in numbers, from row to row. ``initial`` is float32; sums are rounded if ``out`` is bfloat16 (as
    uint16). With each cache line of the strip that is read, the next ``line`` bytes from ``ahead`` on are prefetched.
    """

    return types.void(
        x, x_stride, strip, initial, initial_stride, steps, out, out_stride, ahead, line, rows, most
    ), _of_rows(x.dtype, most.literal_value)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def multiply_cached_rows(context, x, x_stride, strip, initial, initial_stride, steps, out, out_stride, rows, most):
    """The same without prefetching, for strips that are in a cache."""

    signature = types.void(x, x_stride, strip, initial, initial_stride, steps, out, out_stride, rows, most)
    return signature, _of_rows(x.dtype, most.literal_value)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def multiply_tile(context, x, x_stride, strip, initial, initial_stride, steps, out, out_stride, rows):
    """The same for ``rows`` rows (a literal)."""

    def generate(context, builder, signature, args):
        _Tile(builder, rows.literal_value, _instruction(x.dtype)).write(*args[:-1])
        return context.get_dummy_value()

    return types.void(x, x_stride, strip, initial, initial_stride, steps, out, out_stride, rows), generate


def _of_rows(dtype: Any, most: int) -> Any:
    """Returns what emits the product of a number of rows, at most ``most``, the last but one of its arguments."""

    def generate(context, builder, signature, args):
        *places, rows = args[:-1]
        by_count(builder, rows, most, lambda count: _tile(builder, count, dtype).write(*places))
        return context.get_dummy_value()

    return generate


def _tile(builder: Any, rows: int, dtype: Any) -> _Tile:
    if has("avx512f"):
        return _Tile(builder, rows, _instruction(dtype))
    return _NarrowTile(builder, rows) if has("avx2", "fma") else _NeonTile(builder, rows)


def _instruction(dtype: Any) -> str:
    return "vfmadd231ps" if isinstance(dtype, types.Float) else "vdpbf16ps"


class _Tile(Emitter):
    """Emits the product for a fixed number of rows by an instruction of three vectors.

    The inner loop is inline assembly, because LLVM spills registers when it compiles the same instructions.

    Attributes:
        lanes: float32 numbers of a register.
        register: such registers' name in assembly.
        spare: registers besides the sums.
    """

    lanes, register, spare = LANES, "v", 2

    def __init__(self, builder: Any, rows: int, instruction: str) -> None:
        super().__init__(builder)
        self.rows, self.instruction = rows, instruction
        self.unrolled = 4 if rows <= 4 else 2
        self.parts = STRIP // self.lanes

    def write(self, x, x_stride, strip, initial, initial_stride, steps, out, out_stride, ahead=None, line=None):
        b = self.builder
        self.strip, self.line = b.bitcast(strip, INT.as_pointer()), line
        self.ahead = ahead and b.bitcast(ahead, ir.IntType(8).as_pointer())
        starts = (b.gep(x, [b.mul(x_stride, self.int64(row))]) for row in range(0, self.rows, 3))
        self.starts = [b.bitcast(start, INT.as_pointer()) for start in starts]
        self.row_bytes = b.mul(x_stride, self.int64(2 if self.instruction == "vdpbf16ps" else 4))
        self.sums = []  # LLVM keeps them in registers
        for row in range(self.rows):
            first = b.gep(initial, [b.mul(initial_stride, self.int64(row))])
            numbers = (self.load(first, self.lanes * i, FLOAT, self.lanes) for i in range(self.parts))
            self.sums += [cgutils.alloca_once_value(b, number) for number in numbers]
        rounds = b.udiv(steps, self.int64(self.unrolled))
        with cgutils.for_range(b, rounds) as loop:
            self.steps(b.mul(loop.index, self.int64(self.unrolled)), self.unrolled)
        first = b.mul(rounds, self.int64(self.unrolled))
        with cgutils.for_range(b, b.sub(steps, first)) as loop:
            self.steps(b.add(first, loop.index), 1)
        for number, total in enumerate(self.sums):
            row, part = divmod(number, self.parts)
            place = b.gep(out, [b.add(b.mul(out_stride, self.int64(row)), self.int64(self.lanes * part))])
            result = self.rounded(b.load(total)) if out.type.pointee == ir.IntType(16) else b.load(total)
            b.store(result, b.bitcast(place, result.type.as_pointer()), align=2)

    def steps(self, first: Any, count: int) -> None:
        """Emit ``count`` steps from the ``first`` one on."""
        b = self.builder
        for i in range(2 * count if self.ahead else 0):
            number = b.add(b.mul(first, self.int64(2)), self.int64(i))
            self.prefetch(b.gep(self.ahead, [b.mul(number, self.line)]))
        places = [b.gep(self.strip, [b.mul(first, self.int64(STRIP))])]
        places += [b.gep(start, [first]) for start in self.starts]
        results = self.multiply_add([*(b.load(total) for total in self.sums), *places, self.row_bytes], count)
        for result, total in zip(results, self.sums, strict=True):
            b.store(result, total)

    def multiply_add(self, given: list[Any], count: int) -> list[Any]:
        """Emit ``count`` steps of the inner loop, as assembly; returns the sums after them.

        ``given`` holds the sums, pointers to the strip and to every third row of x, and the row stride in bytes: an x86
        address can add one or two strides.
        """
        sums = len(self.sums)
        outputs = sums + self.spare
        starts = range(outputs + sums + 1, outputs + len(given) - 1)
        stride = f"${outputs + len(given) - 1}"
        places = [f"(${starts[row // 3]}{('', f',{stride}', f',{stride},2')[row % 3]})" for row in range(self.rows)]
        registers = [f"${number}" for number in range(sums, outputs)]
        lines = []
        for step in range(count):
            lines += self.lines(step, f"(${outputs + sums})", places, registers)
        constraints = ["=" + self.register] * sums + ["=&" + self.register] * self.spare
        constraints += [str(i) for i in range(sums)] + ["r"] * (len(given) - sums) + ["~{memory}"]
        vector = ir.VectorType(FLOAT, self.lanes)
        kind = ir.FunctionType(ir.LiteralStructType([vector] * outputs), [value.type for value in given])
        result = self.builder.asm(kind, "\n".join(lines), ",".join(constraints), given, side_effect=True)
        return [self.builder.extract_value(result, number) for number in range(sums)]

    def lines(self, step: int, strip: str, places: list[str], registers: list[str]) -> list[str]:
        """Returns the assembly of one step: the multiplying instruction broadcasts the number of x itself."""
        lines = [f"vmovups {128 * step + 64 * i}{strip}, {register}" for i, register in enumerate(registers)]
        return lines + [
            f"{self.instruction} {4 * step}{place}{{1to16}}, {register}, ${2 * row + i}"
            for row, place in enumerate(places)
            for i, register in enumerate(registers)
        ]


class _NarrowTile(_Tile):
    """The same in AVX2's 16 registers of 8 float32: sums of 3 rows take 12 of them."""

    lanes, register = LANES // 2, "x"

    def __init__(self, builder: Any, rows: int) -> None:
        super().__init__(builder, rows, "vfmadd231ps")
        self.spare = 1 + rows

    def lines(self, step: int, strip: str, places: list[str], registers: list[str]) -> list[str]:
        part, *numbers = registers
        lines = [f"vbroadcastss {4 * step}{place}, {x}" for place, x in zip(places, numbers, strict=True)]
        for i in range(self.parts):
            lines.append(f"vmovups {128 * step + 32 * i}{strip}, {part}")
            lines += [f"vfmadd231ps {part}, {x}, ${self.parts * row + i}" for row, x in enumerate(numbers)]
        return lines


class _NeonTile(_Tile):
    """The same in NEON's 32 registers of 4 float32: sums of 3 rows take 24 of them. Written in LLVM's instructions."""

    lanes = LANES // 4

    def __init__(self, builder: Any, rows: int) -> None:
        super().__init__(builder, rows, "")

    def multiply_add(self, given: list[Any], count: int) -> list[Any]:
        b, (*sums, strip, start, row_bytes) = self.builder, given
        vector = ir.VectorType(FLOAT, self.lanes)
        to_all = ir.Constant(ir.VectorType(INT, self.lanes), [0] * self.lanes)
        first_of = b.bitcast(start, ir.IntType(8).as_pointer())
        rows = [b.gep(first_of, [b.mul(row_bytes, self.int64(row))]) for row in range(self.rows)]
        for step in range(count):
            numbers = [b.bitcast(self.load(row, step, FLOAT, 1), FLOAT) for row in rows]
            empty = ir.Constant(vector, ir.Undefined)
            inserted = (b.insert_element(empty, number, ir.Constant(INT, 0)) for number in numbers)
            broadcast = [b.shuffle_vector(one, empty, to_all) for one in inserted]
            for part in range(self.parts):
                weights = self.load(strip, STRIP * step + self.lanes * part, FLOAT, self.lanes)
                for row, x in enumerate(broadcast):
                    at = self.parts * row + part
                    sums[at] = self.call(f"llvm.fma.v{self.lanes}f32", vector, x, weights, sums[at])
        return sums
