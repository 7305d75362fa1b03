"""RMS norms and layer norm in one compiled pass; written out in torch they take eight calls or more."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.activations import silu
from roseplay.kernels.cpu.rows import read_row, round_row, share_rows, write_row
from roseplay.kernels.cpu.simd import LANES, array_at, float_bits, float_from_bits, kernel


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, plus_one: bool = False, gate: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the RMS norm of ``x [..., dim]``, scaled by ``weight [dim]`` after rounding, as in Llama, or with
    ``plus_one`` by ``1 + weight`` before rounding, as in Gemma; times the SiLU of ``gate [..., dim]``, if there is one."""
    x = x.contiguous()
    out, dim = torch.empty_like(x), x.shape[-1]
    compute = _rms_norm(x.dtype == torch.bfloat16, plus_one, gate is not None)
    gates = x if gate is None else gate.contiguous()
    share_rows(compute, (x, gates, weight, out), x.numel() // dim, dim, float_bits(eps))
    return out


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """Returns the layer norm of ``x [..., dim]`` with ``weight`` and ``bias`` ``[dim]``, rounded once."""
    x = x.contiguous()
    out, dim = torch.empty_like(x), x.shape[-1]
    compute = _layer_norm(x.dtype == torch.bfloat16)
    share_rows(compute, (x, weight, bias, out), x.numel() // dim, dim, float_bits(eps))
    return out


@numba.njit(inline="always")
def _divide_by_rms(numbers, eps):
    squares = np.float32(0)
    for i in range(len(numbers)):
        squares += numbers[i] * numbers[i]
    scale = np.float32(1) / np.float32(math.sqrt(squares / np.float32(len(numbers)) + np.float32(eps)))
    for i in range(len(numbers)):
        numbers[i] *= scale


@cache
def _rms_norm(bf16: bool, plus_one: bool, gated: bool) -> Any:
    item = types.uint16 if bf16 else types.float32

    def rms_norm(args, piece):
        rows, pieces, dim, eps = args[5], args[6], args[7], float_from_bits(args[8])
        weight, y = np.empty(dim, np.float32), np.empty(dim, np.float32)
        gate = np.zeros((dim + LANES - 1) // LANES * LANES if gated else 0, np.float32)
        read_row(array_at(args[3], item, 0, dim), weight, bf16)
        if plus_one:
            for d in range(dim):
                weight[d] += np.float32(1)
        for row in range(rows * piece // pieces, rows * (piece + 1) // pieces):
            read_row(array_at(args[1], item, row * dim, dim), y, bf16)
            _divide_by_rms(y, eps)
            if bf16 and not plus_one:
                round_row(y)
            for d in range(dim):
                y[d] *= weight[d]
            if gated:
                if bf16:
                    round_row(y)
                read_row(array_at(args[2], item, row * dim, dim), gate[:dim], bf16)
                silu(gate)
                for d in range(dim):
                    y[d] *= gate[d]
            write_row(y, array_at(args[4], item, row * dim, dim), bf16)

    return kernel(rms_norm)


@cache
def _layer_norm(bf16: bool) -> Any:
    item = types.uint16 if bf16 else types.float32

    def layer_norm(args, piece):
        rows, pieces, dim, eps = args[5], args[6], args[7], float_from_bits(args[8])
        y, weight, bias = np.empty(dim, np.float32), np.empty(dim, np.float32), np.empty(dim, np.float32)
        read_row(array_at(args[2], item, 0, dim), weight, bf16)
        read_row(array_at(args[3], item, 0, dim), bias, bf16)
        for row in range(rows * piece // pieces, rows * (piece + 1) // pieces):
            read_row(array_at(args[1], item, row * dim, dim), y, bf16)
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
            write_row(y, array_at(args[4], item, row * dim, dim), bf16)

    return kernel(layer_norm)
