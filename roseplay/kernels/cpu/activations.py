"""What stands between two products, in vectors: GELU, and SiLU of a gate times what it lets through."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from roseplay.kernels.cpu.parallel import share_out
from roseplay.kernels.cpu.rows import copy_row, is_light, narrow_row, pieces_of, round_row, widen
from roseplay.kernels.cpu.simd import FLOATS, INT, LANES, Emitter, address, kernel, moved, pointer

_ROOT_2_PI = math.sqrt(2 / math.pi)
_GELU_STRETCH = 32 * LANES


def silu_times(both: torch.Tensor, out: torch.Tensor) -> None:
    """``silu(gate) * up`` into ``out [..., dim]``, of ``both [..., 2 * dim]``: gate, then up."""
    dim = out.shape[-1]
    rows, pieces = pieces_of(out)
    given = [both.data_ptr(), out.data_ptr(), rows, pieces, dim]
    share_out(_silu_times(both.dtype == torch.bfloat16), given, pieces, light=is_light(out))


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """GELU by its tanh approximation, of any shape and size; rounded once."""
    x = x.contiguous()
    out, numbers = torch.empty_like(x), x.numel()
    pieces = pieces_of(x)[1] if numbers > _GELU_STRETCH else 1
    share_out(
        _gelu_tanh(x.dtype == torch.bfloat16),
        [x.data_ptr(), out.data_ptr(), numbers, pieces],
        pieces,
        light=is_light(x),
    )
    return out


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _gate(context, at, curved):
    """``x / (1 + e**-y)`` of 16 numbers, in place: y is x, or with ``curved`` (a literal) GELU's cubic of it."""

    def generate(context, builder, signature, args):
        emit, b = Emitter(builder), builder

        def constant(number):
            return ir.Constant(FLOATS, [number] * LANES)

        x = emit.numbers(args[0], 0, ir.FloatType(), LANES)
        y = x
        if curved.literal_value:
            square = b.fmul(x, x)
            y = b.fmul(x, emit.fma(square, constant(2 * _ROOT_2_PI * 0.044715), constant(2 * _ROOT_2_PI)))
        e = emit.exp(b.fneg(emit.call(f"llvm.fabs.v{LANES}f32", FLOATS, y)))
        share = b.fdiv(b.select(b.fcmp_ordered(">=", y, constant(0.0)), constant(1.0), e), b.fadd(constant(1.0), e))
        place = b.bitcast(b.gep(args[0], [ir.Constant(INT, 0)]), FLOATS.as_pointer())
        b.store(b.fmul(x, share), place, align=4)
        return context.get_dummy_value()

    return types.void(at, curved), generate


@cache
def _gelu_tanh(narrow: bool) -> Any:
    item = types.uint16 if narrow else types.float32

    def gelu_tanh(given, piece):
        numbers, pieces = given[3], given[4]
        stretches = (numbers + _GELU_STRETCH - 1) // _GELU_STRETCH
        y = np.zeros(_GELU_STRETCH, np.float32)
        for stretch in range(stretches * piece // pieces, stretches * (piece + 1) // pieces):
            begin = stretch * _GELU_STRETCH
            count = min(_GELU_STRETCH, numbers - begin)
            x = numba.carray(moved(pointer(given[1], item), begin), count)
            out = numba.carray(moved(pointer(given[2], item), begin), count)
            if narrow:
                widen(x, y.view(np.uint32)[:count])
            else:
                copy_row(x, y[:count])
            for first in range(0, count, LANES):
                _gate(address(y, first), 1)
            if narrow:
                narrow_row(y.view(np.uint32)[:count], out)
            else:
                copy_row(y[:count], out)

    return kernel(gelu_tanh)


@cache
def _silu_times(narrow: bool) -> Any:
    item = types.uint16 if narrow else types.float32

    def silu_times(given, piece):
        both_at, out_at, rows, pieces, dim = given[1], given[2], given[3], given[4], given[5]
        gate, up = np.zeros((dim + LANES - 1) // LANES * LANES, np.float32), np.empty(dim, np.float32)
        for row in range(rows * piece // pieces, rows * (piece + 1) // pieces):
            given_gate = numba.carray(moved(pointer(both_at, item), row * 2 * dim), dim)
            given_up = numba.carray(moved(pointer(both_at, item), (row * 2 + 1) * dim), dim)
            out = numba.carray(moved(pointer(out_at, item), row * dim), dim)
            if narrow:
                widen(given_gate, gate.view(np.uint32)[:dim])
                widen(given_up, up.view(np.uint32))
            else:
                copy_row(given_gate, gate[:dim])
                copy_row(given_up, up)
            for first in range(0, dim, LANES):
                _gate(address(gate, first), 0)
            if narrow:
                round_row(gate.view(np.uint32))
            for d in range(dim):
                up[d] *= gate[d]
            if narrow:
                narrow_row(up.view(np.uint32), out)
            else:
                copy_row(up, out)

    return kernel(silu_times)
