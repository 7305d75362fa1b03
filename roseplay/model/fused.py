"""Small operations of a decoder in one compiled pass each, for a CPU and few tokens; Numba compiles them.

A decode step touches little memory in its norms, rotary embeddings and gates, so there each of torch's operations costs
its call. Spelled out, a norm is eight calls, a rotary embedding fourteen. Here each is one, which rounds where the
spelled-out form rounds.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from roseplay.model.lanes import FLOATS, INT, INTS, LANES, Emitter, address, compiled_c, moved, pointer
from roseplay.model.parallel import share_out
from roseplay.model.tape import run

_DTYPES = (torch.float32, torch.bfloat16)
_ROOT_2_PI = math.sqrt(2 / math.pi)
# One thread does it all: beyond this many numbers torch's operations, which share their work out, are as fast.
MOST_NUMBERS = 2**18
_ALONE_NUMBERS = 2**14  # up to here a GELU is over before another thread is awake
_GELU_STRETCH = 32 * LANES


def takes(dtype: torch.dtype) -> bool:
    return dtype in _DTYPES


def fits(*tensors: torch.Tensor) -> bool:
    """Whether these can be given to the functions of this file: one dtype, not too large, rows in one piece."""
    first = tensors[0]
    return first.dtype in _DTYPES and all(
        x.dtype == first.dtype and x.device.type == "cpu" and x.numel() <= MOST_NUMBERS and x.stride(-1) == 1
        for x in tensors
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, plus_one: bool) -> torch.Tensor:
    """``x [..., dim]`` over its root mean square, times ``weight`` (after rounding, as Llama does) or, ``plus_one``, times
    ``1 + weight`` (before rounding, as Gemma does)."""
    x = x.contiguous()
    out, dim = torch.empty_like(x), x.shape[-1]
    kernel = _rms_norm(x.dtype == torch.bfloat16, plus_one).ctypes
    run(kernel, x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.numel() // dim, dim, eps)
    return out


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """``x [..., dim]`` less its mean over its standard deviation, times ``weight`` plus ``bias``; rounded once."""
    x = x.contiguous()
    out, dim = torch.empty_like(x), x.shape[-1]
    places = (t.data_ptr() for t in (x, weight, bias, out))
    run(_layer_norm(x.dtype == torch.bfloat16).ctypes, *places, x.numel() // dim, dim, eps)
    return out


def can_rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether ``rotate`` takes these: one packed row, whole heads, a half for a half."""
    alike = cos.shape == sin.shape == (1, q.shape[2], q.shape[3]) and q.shape[3] == k.shape[3] and q.shape[0] == 1
    return alike and fits(q, k, cos, sin) and cos.is_contiguous() and sin.is_contiguous()


def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary embedding of ``q`` and ``k`` ``[1, heads, tokens, dim]`` by ``cos`` and ``sin`` ``[1, tokens, dim]``: a number and
    the one half a head further on are a pair. The results lie token by token."""
    outs = []
    for x in (q, k):
        heads, tokens, dim = x.shape[1:]
        out = torch.empty((1, tokens, heads, dim), dtype=x.dtype).transpose(1, 2)
        run(
            _rotate(x.dtype == torch.bfloat16).ctypes,
            *(t.data_ptr() for t in (x, cos, sin, out)),
            tokens,
            heads,
            dim // 2,
            x.stride(2),
            x.stride(1),
        )
        outs.append(out)
    return outs[0], outs[1]


def silu_times(both: torch.Tensor, out: torch.Tensor) -> None:
    """``silu(gate) * up`` into ``out [..., dim]``, of ``both [..., 2 * dim]``: gate, then up."""
    dim = out.shape[-1]
    kernel = _silu_times(both.dtype == torch.bfloat16).ctypes
    run(kernel, both.data_ptr(), out.data_ptr(), out.numel() // dim, dim)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """GELU by its tanh approximation, of any shape and size; rounded once."""
    x = x.contiguous()
    out, numbers = torch.empty_like(x), x.numel()
    kernel = _gelu_tanh(x.dtype == torch.bfloat16).address
    pieces = torch.get_num_threads() if numbers > _ALONE_NUMBERS else 1
    share_out([kernel, x.data_ptr(), out.data_ptr(), numbers, pieces], pieces)
    return out


def argmax(x: torch.Tensor) -> torch.Tensor:
    """The first of each row's largest numbers: int64 ``[rows]`` of ``x [rows, columns]``, as ``x.argmax(-1)``, in a fraction of
    its time; a NaN is the largest."""
    x = x.contiguous()
    out = torch.empty(x.shape[0], dtype=torch.int64)
    _argmax(x.dtype == torch.bfloat16).ctypes(x.data_ptr(), out.data_ptr(), *x.shape)
    return out


def can_argmax(x: torch.Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in _DTYPES


@numba.njit(inline="always")
def _widen(narrow, wide):
    """bfloat16 bits to float32 bits."""
    for i in range(wide.shape[0]):
        wide[i] = np.uint32(narrow[i]) << np.uint32(16)


@numba.njit(inline="always")
def _copy(given, to):
    for i in range(to.shape[0]):
        to[i] = given[i]


@numba.njit(inline="always")
def _rounded(bits):
    """The bits of the nearest bfloat16, a tie to the even one; as float32 bits."""
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return (bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)


@numba.njit(inline="always")
def _round(wide):
    for i in range(wide.shape[0]):
        wide[i] = _rounded(wide[i])


@numba.njit(inline="always")
def _narrow(wide, narrow):
    for i in range(wide.shape[0]):
        narrow[i] = _rounded(wide[i]) >> np.uint32(16)


@cache
def _rms_norm(narrow: bool, plus_one: bool) -> Any:
    item = types.uint16 if narrow else types.float32

    def rms_norm(x_at, weight_at, out_at, rows, dim, eps):
        weight, y = np.empty(dim, np.float32), np.empty(dim, np.float32)
        bits = y.view(np.uint32)
        given_weight = numba.carray(pointer(weight_at, item), dim)
        if narrow:
            _widen(given_weight, weight.view(np.uint32))
        else:
            _copy(given_weight, weight)
        if plus_one:
            for d in range(dim):
                weight[d] += np.float32(1)
        for row in range(rows):
            x = numba.carray(moved(pointer(x_at, item), row * dim), dim)
            out = numba.carray(moved(pointer(out_at, item), row * dim), dim)
            if narrow:
                _widen(x, bits)
            else:
                _copy(x, y)
            squares = np.float32(0)
            for d in range(dim):
                squares += y[d] * y[d]
            scale = np.float32(1) / np.float32(math.sqrt(squares / np.float32(dim) + np.float32(eps)))
            for d in range(dim):
                y[d] *= scale
            if narrow and not plus_one:
                _round(bits)
            for d in range(dim):
                y[d] *= weight[d]
            if narrow:
                _narrow(bits, out)
            else:
                _copy(y, out)

    return compiled_c(rms_norm, *[types.int64] * 5, types.float64)


@cache
def _layer_norm(narrow: bool) -> Any:
    item = types.uint16 if narrow else types.float32

    def layer_norm(x_at, weight_at, bias_at, out_at, rows, dim, eps):
        y, weight, bias = np.empty(dim, np.float32), np.empty(dim, np.float32), np.empty(dim, np.float32)
        for given_at, wide in ((weight_at, weight), (bias_at, bias)):
            given = numba.carray(pointer(given_at, item), dim)
            if narrow:
                _widen(given, wide.view(np.uint32))
            else:
                _copy(given, wide)
        for row in range(rows):
            x = numba.carray(moved(pointer(x_at, item), row * dim), dim)
            out = numba.carray(moved(pointer(out_at, item), row * dim), dim)
            if narrow:
                _widen(x, y.view(np.uint32))
            else:
                _copy(x, y)
            total, squares = np.float32(0), np.float32(0)
            for d in range(dim):
                total += y[d]
            mean = total / np.float32(dim)
            for d in range(dim):
                y[d] -= mean
                squares += y[d] * y[d]
            scale = np.float32(1) / np.float32(math.sqrt(squares / np.float32(dim) + np.float32(eps)))
            for d in range(dim):
                y[d] = y[d] * scale * weight[d] + bias[d]
            if narrow:
                _narrow(y.view(np.uint32), out)
            else:
                _copy(y, out)

    return compiled_c(layer_norm, *[types.int64] * 6, types.float64)


@cache
def _rotate(narrow: bool) -> Any:
    item = types.uint16 if narrow else types.float32

    def rotate(x_at, cos_at, sin_at, out_at, tokens, heads, half, by_token, by_head):
        dim = 2 * half
        cos, sin, x = np.empty(dim, np.float32), np.empty(dim, np.float32), np.empty(dim, np.float32)
        turned, across = np.empty(dim, np.float32), np.empty(dim, np.float32)
        for token in range(tokens):
            given_cos = numba.carray(moved(pointer(cos_at, item), token * dim), dim)
            given_sin = numba.carray(moved(pointer(sin_at, item), token * dim), dim)
            if narrow:
                _widen(given_cos, cos.view(np.uint32))
                _widen(given_sin, sin.view(np.uint32))
            else:
                _copy(given_cos, cos)
                _copy(given_sin, sin)
            for head in range(heads):
                given = numba.carray(moved(pointer(x_at, item), token * by_token + head * by_head), dim)
                out = numba.carray(moved(pointer(out_at, item), (token * heads + head) * dim), dim)
                if narrow:
                    _widen(given, x.view(np.uint32))
                else:
                    _copy(given, x)
                for d in range(dim):
                    turned[d] = x[d] * cos[d]
                for d in range(half):
                    across[d] = -x[d + half] * sin[d]
                for d in range(half):
                    across[d + half] = x[d] * sin[d + half]
                if narrow:
                    _round(turned.view(np.uint32))
                    _round(across.view(np.uint32))
                for d in range(dim):
                    turned[d] += across[d]
                if narrow:
                    _narrow(turned.view(np.uint32), out)
                else:
                    _copy(turned, out)

    return compiled_c(rotate, *[types.int64] * 9)


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
                _widen(x, y.view(np.uint32)[:count])
            else:
                _copy(x, y[:count])
            for first in range(0, count, LANES):
                _gate(address(y, first), 1)
            if narrow:
                _narrow(y.view(np.uint32)[:count], out)
            else:
                _copy(y[:count], out)

    return compiled_c(gelu_tanh, types.CPointer(types.int64), types.int64)


@cache
def _silu_times(narrow: bool) -> Any:
    item = types.uint16 if narrow else types.float32

    def silu_times(both_at, out_at, rows, dim):
        gate, up = np.zeros((dim + LANES - 1) // LANES * LANES, np.float32), np.empty(dim, np.float32)
        for row in range(rows):
            given_gate = numba.carray(moved(pointer(both_at, item), row * 2 * dim), dim)
            given_up = numba.carray(moved(pointer(both_at, item), (row * 2 + 1) * dim), dim)
            out = numba.carray(moved(pointer(out_at, item), row * dim), dim)
            if narrow:
                _widen(given_gate, gate.view(np.uint32)[:dim])
                _widen(given_up, up.view(np.uint32))
            else:
                _copy(given_gate, gate[:dim])
                _copy(given_up, up)
            for first in range(0, dim, LANES):
                _gate(address(gate, first), 0)
            if narrow:
                _round(gate.view(np.uint32))
            for d in range(dim):
                up[d] *= gate[d]
            if narrow:
                _narrow(up.view(np.uint32), out)
            else:
                _copy(up, out)

    return compiled_c(silu_times, *[types.int64] * 4)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _largest(context, at, numbers):
    """The largest of so many numbers (a literal; whole vectors), as integers in order (see ``_argmax``)."""
    narrow = at.dtype.bitwidth == 16
    count = numbers.literal_value // LANES

    def generate(context, builder, signature, args):
        emit, b = Emitter(builder), builder
        best = cgutils.alloca_once_value(b, ir.Constant(INTS, [-(2**31)] * LANES))
        with cgutils.for_range(b, ir.Constant(ir.IntType(64), count)) as loop:
            place = b.gep(args[0], [b.mul(loop.index, ir.Constant(ir.IntType(64), LANES))])
            x = emit.numbers(place, 0, ir.IntType(16) if narrow else INT, LANES)
            x = b.sext(x, INTS) if narrow else x
            sign = b.ashr(x, ir.Constant(INTS, [31] * LANES))
            x = b.xor(x, b.and_(sign, ir.Constant(INTS, [0x7FFF if narrow else 0x7FFFFFFF] * LANES)))
            so_far = b.load(best)
            b.store(b.select(b.icmp_signed(">", x, so_far), x, so_far), best)
        kind = ir.FunctionType(INT, [INTS])
        reduce = cgutils.get_or_insert_function(b.module, kind, f"llvm.vector.reduce.smax.v{LANES}i32")
        return b.call(reduce, [b.load(best)])

    return types.int32(at, numbers), generate


@cache
def _argmax(narrow: bool) -> Any:
    item, most = (types.int16, 0x7FFF) if narrow else (types.int32, 0x7FFFFFFF)
    stretch = 64 * LANES

    def order(bits):
        """As integers, numbers are in order but for the negative ones, which run the other way."""
        wide = np.int64(bits)
        return wide ^ most if wide < 0 else wide

    order = numba.njit(inline="always")(order)

    def argmax(x_at, out_at, rows, columns):
        out = numba.carray(pointer(out_at, types.int64), rows)
        for row in range(rows):
            begin = moved(pointer(x_at, item), row * columns)
            x = numba.carray(begin, columns)
            best, at = np.int64(-(2**40)), 0
            whole = columns // stretch * stretch
            for first in range(0, whole, stretch):
                highest = np.int64(_largest(moved(begin, first), stretch))
                if highest > best:
                    best, at = highest, first
            for i in range(whole, columns):
                if order(x[i]) > best:
                    best, at = order(x[i]), i
            while order(x[at]) != best:
                at += 1
            out[row] = at

    return compiled_c(argmax, *[types.int64] * 4)
