"""Multiplies up to 32 rows by one strip of 32 outputs with AMX, whose registers are tiles of 16 rows of 64 bytes.

One instruction multiplies a tile of x, rows of 32 bfloat16, by a tile of the strip, 16 pairs of numbers for 16 outputs, and
adds to a tile of sums, rows of 16 float32. Strips made by ``matmul.lay_out`` consist of such tiles, two side by side.
(Intel, Architectures Software Developer's Manual, volume 1, chapter 18.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from roseplay.kernels.cpu.simd import FLOAT, LANES, Emitter, address

ROWS = 16  # of a tile
MOST_ROWS = 2 * ROWS  # of a product: two tiles of x
STEP = 32  # numbers of a row that one instruction multiplies
CONFIG_BYTES = 64
_PAIR_BYTES = 128  # of a strip: two numbers for each of 32 outputs
_STEP_BYTES = STEP // 2 * _PAIR_BYTES
_AHEAD = 4096  # bytes by which a strip is prefetched ahead: two steps

# Registers: sums of two blocks of rows by two halves of the strip, then two tiles of x and two of the strip.
_SUMS, _X, _STRIP = ((0, 1), (2, 3)), (4, 5), (6, 7)


@numba.njit(inline="always")
def configure(config, rows):
    """Write the sizes of all registers for products of ``rows`` rows, at most 32, to ``config``, uint8 ``[64]`` of zeros."""
    config[0] = 1  # the only palette that exists
    low, high = min(rows, 16), max(rows - 16, 0)
    for tile in range(8):
        of_second = tile == 2 or tile == 3 or tile == 5
        count = 16 if tile >= 6 else high if of_second else low
        config[16 + 2 * tile] = 64 if count else 0  # bytes of a row
        config[48 + tile] = count


@intrinsic  # type: ignore[untyped-decorator]
def load_config(context, config):
    """Set the registers' sizes, and zero them."""

    def generate(context, builder, signature, args):
        _Tiles(builder).asm("ldtilecfg ($0)", args[0])
        return context.get_dummy_value()

    return types.void(config), generate


@intrinsic  # type: ignore[untyped-decorator]
def release(context):
    """Release the registers, so that the operating system need not save them when it switches threads."""

    def generate(context, builder, signature, args):
        _Tiles(builder).asm("tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def multiply(context, x, row_bytes, strip, steps, sums, sum_bytes, blocks, fetch, add):
    """Write rows of x times a strip to ``sums``, float32 ``[rows, 32]``.

    Args:
        row_bytes: stride of the rows of x; ``sum_bytes``: of the sums.
        steps: length of a row in units of 64 bytes.
        blocks: 1 or 2 (a literal) blocks of up to 16 rows, as configured.
        fetch: 1 (a literal) to prefetch the strip.
        add: 1 (a literal) to add to the sums.
    """

    def generate(context, builder, signature, args):
        choices = [literal.literal_value for literal in (blocks, fetch, add)]
        _Tiles(builder).product(args[:6], *choices)
        return context.get_dummy_value()

    return types.void(x, row_bytes, strip, steps, sums, sum_bytes, blocks, fetch, add), generate


@numba.njit(inline="always")
def multiply_rows(config, configured, x, row_bytes, strip, steps, sums, rows, fetch):
    """``multiply`` for up to 32 rows, first configuring that number if it is not ``configured``; returns ``rows``."""
    if rows != configured:
        configure(config, rows)
        load_config(address(config, 0))
    if rows > ROWS and fetch:
        multiply(x, row_bytes, strip, steps, sums, _PAIR_BYTES, 2, 1, 0)
    elif rows > ROWS:
        multiply(x, row_bytes, strip, steps, sums, _PAIR_BYTES, 2, 0, 0)
    elif fetch:
        multiply(x, row_bytes, strip, steps, sums, _PAIR_BYTES, 1, 1, 0)
    else:
        multiply(x, row_bytes, strip, steps, sums, _PAIR_BYTES, 1, 0, 0)
    return rows


@intrinsic  # type: ignore[untyped-decorator]
def finish(context, sums, bias, out, out_stride, rows):
    """Write ``sums [rows, 32]`` plus ``bias [32]``, rounded to bfloat16, to rows of ``out`` (as uint16)."""

    def generate(context, builder, signature, args):
        sums, bias, out, out_stride, rows = args
        emit, b = Emitter(builder), builder
        biases = [emit.load(bias, LANES * half, FLOAT, LANES) for half in range(2)]
        with cgutils.for_range(b, rows) as loop:
            row = b.gep(sums, [b.mul(loop.index, ir.Constant(loop.index.type, 2 * LANES))])
            to = b.gep(out, [b.mul(loop.index, out_stride)])
            for half in range(2):
                total = b.fadd(emit.load(row, LANES * half, FLOAT, LANES), biases[half])
                result = emit.rounded(total)
                at = b.gep(to, [ir.Constant(ir.IntType(64), LANES * half)])
                b.store(result, b.bitcast(at, result.type.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(sums, bias, out, out_stride, rows), generate


class _Tiles:
    """Emits AMX instructions. LLVM does not use these registers itself, so they keep their contents in between."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def asm(self, text: str, *args: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [arg.type for arg in args])
        constraints = ",".join([*("r" for _ in args), "~{memory}"])
        self.builder.asm(kind, text, constraints, args, side_effect=True)

    def product(self, operands: Sequence[Any], blocks: int, fetch: int, add: int) -> None:
        x, row_bytes, strip, steps, sums, sum_bytes = operands
        b = self.builder
        byte = ir.IntType(8).as_pointer()
        pair = ir.Constant(ir.IntType(64), _PAIR_BYTES)
        rows = [b.bitcast(x, byte)]
        if blocks == 2:
            rows.append(b.gep(rows[0], [b.mul(row_bytes, ir.Constant(row_bytes.type, ROWS))]))
        strip = b.bitcast(strip, byte)
        to = b.bitcast(sums, byte)
        places = [b.gep(to, [b.mul(sum_bytes, ir.Constant(sum_bytes.type, block * ROWS))]) for block in range(blocks)]
        for block, place in enumerate(places):
            first, second = _SUMS[block]
            if add:
                self.asm(f"tileloadd ($0,$1), %tmm{first}\ntileloadd 64($0,$1), %tmm{second}", place, sum_bytes)
            else:
                self.asm(f"tilezero %tmm{first}\ntilezero %tmm{second}")
        lines = ["tileloadd ($0,$1), %tmm6", "tileloadd 64($0,$1), %tmm7"]
        for block in range(blocks):
            lines.append(f"tileloadd (${3 + block},$2), %tmm{_X[block]}")
            lines += [
                f"tdpbf16ps %tmm{half}, %tmm{_X[block]}, %tmm{tile}"
                for half, tile in zip(_STRIP, _SUMS[block], strict=True)
            ]
        if fetch:
            lines += [f"prefetcht0 {_AHEAD + at}($0)" for at in range(0, _STEP_BYTES, 64)]
        with cgutils.for_range(b, steps) as loop:
            at = b.gep(strip, [b.mul(loop.index, ir.Constant(loop.index.type, _STEP_BYTES))])
            offset = b.mul(loop.index, ir.Constant(loop.index.type, 2 * STEP))
            self.asm("\n".join(lines), at, pair, row_bytes, *(b.gep(row, [offset]) for row in rows))
        for block, place in enumerate(places):
            first, second = _SUMS[block]
            self.asm(f"tilestored %tmm{first}, ($0,$1)\ntilestored %tmm{second}, 64($0,$1)", place, sum_bytes)
