"""Multiplies a few rows by one strip of quantized blocks in integers, by AVX-512's VNNI or in AVX2.

Rows are int8, rounded in blocks of 32 (``rounding``). The sum of a block's products is exact; it is then multiplied by both
scales and added in float32. Offsets and minima are the same for all inputs of a block, so that they are multiplied by the
sum of the row's numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from roseplay.kernels.cpu.features import has
from roseplay.kernels.cpu.quants.strips import STRIP, block_bytes, number_bytes
from roseplay.kernels.cpu.simd import FLOAT, INT, Emitter, by_count
from roseplay.model.ggml_blocks import BLOCK, Format

RECORD = 4  # float32 numbers that describe a block of a row: its scale; the scaled sum of all, half, the other half
_BYTE, _SHORT, _HALF = ir.IntType(8), ir.IntType(16), ir.HalfType()


@cache
def most_rows() -> int:
    """Returns the most rows of a tile on this CPU; 0 if it has none of the instructions."""
    if has("avx512f", "avx512bw", "avx512vnni"):
        return 8
    return 4 if has("avx2", "fma", "f16c") else 0


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def multiply_blocks(
    context, x, x_stride, records, record_stride, strip, blocks, sums, ahead, rows, most, bits, scales, offset
):
    """Write ``rows`` rows times a strip to float32 ``sums [rows, 32]``; at most ``most`` rows.

    Args:
        x, records: rows of int8 and of float32 ``[blocks, 4]``; strides in numbers.
        ahead: bytes by which the strip is prefetched.
        most, bits, scales, offset: literals; the last ones are the ``Format``'s, -1 for no offset.
    """
    form = Format.of(*(literal.literal_value for literal in (bits, scales, offset)))

    def generate(context, builder, signature, args):
        *places, count = args[:9]
        tile = _VnniTile if has("avx512vnni") else _NarrowTile
        by_count(builder, count, most.literal_value, lambda number: tile(builder, form, number).write(*places))
        return context.get_dummy_value()

    return types.void(
        x, x_stride, records, record_stride, strip, blocks, sums, ahead, rows, most, bits, scales, offset
    ), generate


class _VnniTile(Emitter):
    """Emits the product for a fixed number of rows.

    Attributes:
        lanes: outputs of a vector.
        register: such registers' name in assembly.
        spare: registers that the assembly uses beside its operands.
    """

    lanes, register, spare = 16, "v", 2

    def __init__(self, builder: Any, form: Format, rows: int) -> None:
        super().__init__(builder)
        self.form, self.rows = form, rows
        self.floats, self.ints = ir.VectorType(FLOAT, self.lanes), ir.VectorType(INT, self.lanes)

    def write(self, x, x_stride, records, record_stride, strip, blocks, sums, ahead):
        b, parts = self.builder, STRIP // self.lanes
        strip, x = (b.bitcast(at, _BYTE.as_pointer()) for at in (strip, x))
        rows = [b.gep(x, [b.mul(x_stride, self.int64(row))]) for row in range(self.rows)]
        records = [b.gep(records, [b.mul(record_stride, self.int64(row))]) for row in range(self.rows)]
        totals = [[cgutils.alloca_once_value(b, self.all(0.0)) for _ in range(parts)] for _ in rows]
        with cgutils.for_range(b, blocks) as loop:
            at = b.gep(strip, [b.mul(loop.index, self.int64(block_bytes(self.form)))])
            for line in range(0, block_bytes(self.form), 64):
                self.prefetch(b.gep(at, [b.add(ahead, self.int64(line))]))
            numbers = [b.gep(row, [b.mul(loop.index, self.int64(BLOCK))]) for row in rows]
            described = [b.gep(row, [b.mul(loop.index, self.int64(RECORD))]) for row in records]
            for part in range(parts):
                weights, scales, minima = self.numbers(at, part), *self.factors(at, part)
                for row in range(self.rows):
                    total = b.load(totals[row][part])
                    total = self.add_block(total, weights, scales, minima, numbers[row], described[row])
                    b.store(total, totals[row][part])
        for row in range(self.rows):
            for part in range(parts):
                place = b.gep(sums, [self.int64(row * STRIP + part * self.lanes)])
                b.store(b.load(totals[row][part]), b.bitcast(place, self.floats.as_pointer()), align=4)

    def add_block(self, total: Any, weights: Any, scales: Any, minima: Any, x: Any, record: Any) -> Any:
        """Emit the sum of ``total`` and a block's product; returns it."""
        each = len(weights) // len(scales)
        for i, scale in enumerate(scales):
            which = 1 if len(scales) == 1 else 2 + i
            vectors = [*weights[i * each : (i + 1) * each], scale, *minima[i : i + 1]]
            total = self.add_scaled(total, vectors, x, 4 * i * each, record, 4 * which)
        return total

    def add_scaled(self, total: Any, vectors: list[Any], x: Any, first: int, record: Any, minimum_at: int) -> Any:
        """Emit the sum of ``total`` and the product of the inputs that share a scale; returns it.

        It is assembly, because LLVM would keep the numbers of all rows in registers for the next part, and spill them.

        Args:
            vectors: weights, their scale, and the minimum if there is one.
            first: offset of the first number of x, in bytes.
            minimum_at: offset of the scaled sum of these numbers in the record, in bytes.
        """
        operands = [total, *vectors, *self.constants(), x, record]
        outputs = 1 + self.spare
        names = [f"${outputs + i}" for i in range(len(operands))]
        count = 8 // self.form.scales  # vectors of weights
        words = [(names[1 + i], f"{first + 4 * i}({names[-2]})") for i in range(count)]
        spare = [f"${1 + i}" for i in range(self.spare)]
        lines = self.dot(words, spare, names[1 + len(vectors) : -2])
        lines += self.scaled(spare, names[1 + count], names[-1])
        if count + 1 < len(vectors):
            lines += self.added(spare, names[2 + count], f"{minimum_at}({names[-1]})")
        constraints = (
            [f"=&{self.register}"] * outputs + ["0"] + [self.register] * (len(operands) - 3) + ["r", "r", "~{memory}"]
        )
        kind = ir.FunctionType(ir.LiteralStructType([self.floats] * outputs), [value.type for value in operands])
        result = self.builder.asm(kind, "\n".join(lines), ",".join(constraints), operands, side_effect=False)
        return self.builder.extract_value(result, 0)

    def constants(self) -> list[Any]:
        """Returns vectors that ``dot`` needs."""
        return []

    def dot(self, words: list[tuple[str, str]], spare: list[str], constants: list[str]) -> list[str]:
        """Returns the lines that leave the sums of the products of unsigned and signed bytes in the first spare register."""
        lines = [f"vpxord {spare[0]}, {spare[0]}, {spare[0]}"]
        return lines + [f"vpdpbusd {place}{{1to16}}, {weights}, {spare[0]}" for weights, place in words]

    def scaled(self, spare: list[str], scale: str, record: str) -> list[str]:
        """Returns the lines that add the sums, times both scales, to the total."""
        lines = [f"vcvtdq2ps {spare[0]}, {spare[0]}", f"vmulps ({record}){{1to16}}, {scale}, {spare[1]}"]
        return [*lines, f"vfmadd231ps {spare[1]}, {spare[0]}, $0"]

    def added(self, spare: list[str], minimum: str, place: str) -> list[str]:
        """Returns the lines that add a number of the record times the minimum to the total."""
        return [f"vfmadd231ps {place}{{1to16}}, {minimum}, $0"]

    def numbers(self, at: Any, part: int) -> list[Any]:
        """Returns a block's numbers for the outputs of one part: four inputs a lane, in each of eight vectors."""
        b, nibble = self.builder, ir.Constant(self.ints, [0x0F0F0F0F] * self.lanes)
        words = 4 if self.form.bits == 4 else 8
        numbers = [self.vector(at, 4 * STRIP * word + 4 * self.lanes * part, self.ints) for word in range(words)]
        if self.form.bits == 4:
            four = ir.Constant(self.ints, [4] * self.lanes)
            numbers = [b.and_(x, nibble) for x in numbers] + [b.and_(b.lshr(x, four), nibble) for x in numbers]
        return numbers

    def factors(self, at: Any, part: int) -> tuple[list[Any], list[Any]]:
        """Returns the scales of a block's outputs, and what is added for each unit of the sum of a row's numbers."""
        begin, form = number_bytes(self.form) + 2 * self.lanes * part, self.form
        stored = range(form.scales + (form.offset is None))
        halves = (self.vector(at, begin + 2 * STRIP * i, ir.VectorType(_HALF, self.lanes)) for i in stored)
        factors = [self.builder.fpext(half, self.floats) for half in halves]
        if form.offset is None:
            return factors[:-1], factors[-1:]
        return factors, self.offsets(factors)

    def offsets(self, scales: list[Any]) -> list[Any]:
        return [self.builder.fmul(scale, self.all(-float(self.form.offset or 0))) for scale in scales]

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return self.call(f"llvm.fma.v{self.lanes}f32", self.floats, x, y, z)

    def all(self, number: float) -> Any:
        return ir.Constant(self.floats, [number] * self.lanes)

    def vector(self, at: Any, offset: int, kind: Any) -> Any:
        """Returns the vector at an offset in bytes."""
        at = self.builder.gep(at, [self.int64(offset)])
        return self.builder.load(self.builder.bitcast(at, kind.as_pointer()), align=16)


class _NarrowTile(_VnniTile):
    """The same in AVX2, which multiplies bytes into sums of two products of 16 bits."""

    lanes, register, spare = 8, "x", 4

    def constants(self) -> list[Any]:
        return [ir.Constant(ir.VectorType(_SHORT, 16), [1] * 16)]

    def dot(self, words: list[tuple[str, str]], spare: list[str], constants: list[str]) -> list[str]:
        total, pairs, x, absolute = spare
        together = {4: 8, 5: 4, 6: 2, 8: 1}[self.form.bits]  # products whose sums fit 16 bits
        lines = []
        for i, (weights, place) in enumerate(words):
            lines.append(f"vpbroadcastd {place}, {x}")
            if self.form.bits == 8:  # |w| times x with the sign of w
                lines += [f"vpsignb {weights}, {x}, {x}", f"vpsignb {weights}, {weights}, {absolute}"]
                weights = absolute
            to = x if i % together else pairs
            lines.append(f"vpmaddubsw {x}, {weights}, {to}")
            if i % together:
                lines.append(f"vpaddw {x}, {pairs}, {pairs}")
            if (i + 1) % together == 0 or i + 1 == len(words):
                to = pairs if i >= together else total
                lines.append(f"vpmaddwd {constants[0]}, {pairs}, {to}")
                if i >= together:
                    lines.append(f"vpaddd {pairs}, {total}, {total}")
        return lines

    def scaled(self, spare: list[str], scale: str, record: str) -> list[str]:
        total, _, x, _ = spare
        lines = [f"vcvtdq2ps {total}, {total}", f"vbroadcastss ({record}), {x}", f"vmulps {scale}, {x}, {x}"]
        return [*lines, f"vfmadd231ps {x}, {total}, $0"]

    def added(self, spare: list[str], minimum: str, place: str) -> list[str]:
        return [f"vbroadcastss {place}, {spare[2]}", f"vfmadd231ps {spare[2]}, {minimum}, $0"]

    def numbers(self, at: Any, part: int) -> list[Any]:
        numbers = super().numbers(at, part)
        if self.form.bits < 8:
            return numbers
        # Unsigned bytes would overflow 16 bits: back to signed ones.
        sign = ir.Constant(self.ints, [0x80808080 - 2**32] * self.lanes)
        return [self.builder.xor(number, sign) for number in numbers]

    def offsets(self, scales: list[Any]) -> list[Any]:
        return [] if self.form.bits == 8 else super().offsets(scales)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def expand_block(context, block, to, bits, scales, offset):
    """Dequantize a block to the next 32 inputs of a strip of floats (``matmul.lay_out``): float32, or bfloat16 as uint16.

    ``bits``, ``scales`` and ``offset`` as for ``multiply_blocks``.
    """
    form = Format.of(*(literal.literal_value for literal in (bits, scales, offset)))

    def generate(context, builder, signature, args):
        _Expansion(builder, form, 1).expand(*args[:2])
        return context.get_dummy_value()

    return types.void(block, to, bits, scales, offset), generate


class _Expansion(_VnniTile):
    """Emits the conversion of a block to floats."""

    def expand(self, block: Any, to: Any) -> None:
        b, bf16 = self.builder, to.type.pointee == _SHORT
        at = b.bitcast(block, _BYTE.as_pointer())
        byte, sixteen = ir.Constant(self.ints, [255] * self.lanes), ir.Constant(self.ints, [16] * self.lanes)
        for part in range(STRIP // self.lanes):
            words, (scales, minima) = self.numbers(at, part), self.factors(at, part)
            for number, word in enumerate(words):
                which = number * len(scales) // len(words)
                floats = []
                for i in range(4):
                    shifted = b.lshr(word, ir.Constant(self.ints, [8 * i] * self.lanes))
                    value = b.sitofp(b.and_(shifted, byte), self.floats)
                    floats.append(self.fma(value, scales[which], minima[min(which, len(minima) - 1)]))
                if bf16:  # two inputs side by side
                    bits = [b.zext(self.rounded(value), self.ints) for value in floats]
                    pairs = [b.or_(first, b.shl(second, sixteen)) for first, second in (bits[:2], bits[2:])]
                    self.store(pairs, to, 2 * number, part)
                else:
                    self.store(floats, to, 4 * number, part)

    def store(self, vectors: list[Any], to: Any, first: int, part: int) -> None:
        at = self.builder.bitcast(to, vectors[0].type.as_pointer())
        for i, vector in enumerate(vectors):
            place = self.builder.gep(at, [self.int64((first + i) * (STRIP // self.lanes) + part)])
            self.builder.store(vector, place, align=16)
