"""GELU, SiLU and exponentials, in explicit vectors."""

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

from roseplay.kernels.cpu.rows import read_row, round_row, share_rows, write_row
from roseplay.kernels.cpu.simd import FLOATS, INT, LANES, Emitter, address, array_at, kernel

_ROOT_2_PI = math.sqrt(2 / math.pi)
_GELU_CHUNK = 32 * LANES  # numbers


def silu_times(both: torch.Tensor, out: torch.Tensor) -> None:
    """Write ``silu(gate) * up`` to ``out [..., dim]``; ``both [..., 2 * dim]`` is the gate, then up."""
    dim = out.shape[-1]
    share_rows(_silu_times(both.dtype == torch.bfloat16), (out, both), out.numel() // dim, dim)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Returns GELU by its tanh approximation, of a tensor of any shape; rounded once."""
    x = x.contiguous()
    out = torch.empty_like(x)
    share_rows(_gelu_tanh(x.dtype == torch.bfloat16), (x, out), -(-x.numel() // _GELU_CHUNK), x.numel())
    return out


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _gate(context, at, gelu):
    """``x / (1 + e**-y)`` of 16 numbers, in place: y is x, or with ``gelu`` (a literal) the cubic of GELU's tanh."""

    def generate(context, builder, signature, args):
        emit, b = Emitter(builder), builder

        def constant(number):
            return ir.Constant(FLOATS, [number] * LANES)

        x = emit.load(args[0], 0, ir.FloatType(), LANES)
        y = x
        if gelu.literal_value:
            square = b.fmul(x, x)
            y = b.fmul(x, emit.fma(square, constant(2 * _ROOT_2_PI * 0.044715), constant(2 * _ROOT_2_PI)))
        e = emit.exp(b.fneg(emit.call(f"llvm.fabs.v{LANES}f32", FLOATS, y)))
        sigmoid = b.fdiv(b.select(b.fcmp_ordered(">=", y, constant(0.0)), constant(1.0), e), b.fadd(constant(1.0), e))
        place = b.bitcast(b.gep(args[0], [ir.Constant(INT, 0)]), FLOATS.as_pointer())
        b.store(b.fmul(x, sigmoid), place, align=4)
        return context.get_dummy_value()

    return types.void(at, gelu), generate


@intrinsic  # type: ignore[untyped-decorator]
def _exp(context, at):
    """``e**x`` of 16 numbers up to 0, in place."""

    def generate(context, builder, signature, args):
        emit = Emitter(builder)
        place = builder.bitcast(builder.gep(args[0], [ir.Constant(INT, 0)]), FLOATS.as_pointer())
        builder.store(emit.exp(emit.load(args[0], 0, ir.FloatType(), LANES)), place, align=4)
        return context.get_dummy_value()

    return types.void(at), generate


@numba.njit(inline="always")
def exp(numbers):
    """``e**x`` of float32 numbers up to 0 in place, in whole vectors of 16."""
    for first in range(0, len(numbers), LANES):
        _exp(address(numbers, first))


@numba.njit(inline="always")
def silu(numbers):
    """SiLU of float32 numbers in place, in whole vectors of 16."""
    for first in range(0, len(numbers), LANES):
        _gate(address(numbers, first), 0)


@cache
def _gelu_tanh(bf16: bool) -> Any:
    item = types.uint16 if bf16 else types.float32

    def gelu_tanh(args, piece):
        chunks, pieces, numbers = args[3], args[4], args[5]
        y = np.zeros(_GELU_CHUNK, np.float32)
        for chunk in range(chunks * piece // pieces, chunks * (piece + 1) // pieces):
            begin = chunk * _GELU_CHUNK
            count = min(_GELU_CHUNK, numbers - begin)
            read_row(array_at(args[1], item, begin, count), y[:count], bf16)
            for first in range(0, count, LANES):
                _gate(address(y, first), 1)
            write_row(y, array_at(args[2], item, begin, count), bf16)

    return kernel(gelu_tanh)


@cache
def _silu_times(bf16: bool) -> Any:
    item = types.uint16 if bf16 else types.float32

    def silu_times(args, piece):
        rows, pieces, dim = args[3], args[4], args[5]
        gate, up = np.zeros((dim + LANES - 1) // LANES * LANES, np.float32), np.empty(dim, np.float32)
        for row in range(rows * piece // pieces, rows * (piece + 1) // pieces):
            read_row(array_at(args[2], item, row * 2 * dim, dim), gate[:dim], bf16)
            read_row(array_at(args[2], item, (row * 2 + 1) * dim, dim), up, bf16)
            silu(gate)
            if bf16:
                round_row(gate)
            for d in range(dim):
                up[d] *= gate[d]
            write_row(up, array_at(args[1], item, row * dim, dim), bf16)

    return kernel(silu_times)
