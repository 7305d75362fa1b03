"""Rotary embeddings, and their angles, in one compiled pass each; written out in torch they take fourteen calls and eight."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.rows import fits, read_row, round_row, share_rows, write_row
from roseplay.kernels.cpu.simd import array_at, float_bits, float_from_bits, kernel


def can_rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Returns whether ``rotate`` takes these: one row of tokens, whole heads rotated, and one supported dtype."""
    alike = cos.shape == sin.shape == (1, q.shape[2], q.shape[3]) and q.shape[3] == k.shape[3] and q.shape[0] == 1
    alike = alike and q.dtype == k.dtype == cos.dtype == sin.dtype
    return alike and all(map(fits, (q, k, cos, sin))) and cos.is_contiguous() and sin.is_contiguous()


def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x * cos + rotate_half(x) * sin`` of ``q`` ``[1, heads, tokens, dim]`` and ``k`` ``[1, kv_heads, tokens, dim]``.

    ``cos`` and ``sin`` are ``[1, tokens, dim]``. The results have the shapes of ``q`` and ``k``, tokens outermost in memory.
    """
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def angles(
    positions: torch.Tensor, frequencies: torch.Tensor, scaling: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the scaled cosines and sines of ``positions [1, tokens]``, int64, times ``frequencies [dim / 2]``, float32:
    ``[1, tokens, dim]`` each, in ``dtype``, both halves of ``dim`` alike."""
    positions, (tokens, half) = positions.contiguous(), (positions.shape[1], len(frequencies))
    cos, sin = (torch.empty((1, tokens, 2 * half), dtype=dtype) for _ in range(2))
    compute = _angles(dtype == torch.bfloat16)
    share_rows(compute, (cos, sin, positions, frequencies), tokens, half, float_bits(scaling))
    return cos, sin


@cache
def _angles(bf16: bool) -> Any:
    item = types.uint16 if bf16 else types.float32

    def angles(args, piece):
        tokens, pieces, half, scaling = args[5], args[6], args[7], np.float32(float_from_bits(args[8]))
        frequencies = array_at(args[4], types.float32, 0, half)
        cos, sin = np.empty(half, np.float32), np.empty(half, np.float32)
        for token in range(tokens * piece // pieces, tokens * (piece + 1) // pieces):
            position = np.float32(array_at(args[3], types.int64, token, 1)[0])
            for d in range(half):
                cos[d] = np.float32(math.cos(position * frequencies[d])) * scaling
                sin[d] = np.float32(math.sin(position * frequencies[d])) * scaling
            for first in (2 * token * half, (2 * token + 1) * half):
                write_row(cos, array_at(args[1], item, first, half), bf16)
                write_row(sin, array_at(args[2], item, first, half), bf16)

    return kernel(angles)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    heads, tokens, dim = x.shape[1:]
    out = torch.empty((1, tokens, heads, dim), dtype=x.dtype).transpose(1, 2)
    compute = _rotate_kernel(x.dtype == torch.bfloat16)
    share_rows(compute, (x, cos, sin, out), tokens, heads, dim // 2, x.stride(2), x.stride(1))
    return out


@cache
def _rotate_kernel(bf16: bool) -> Any:
    item = types.uint16 if bf16 else types.float32

    def rotate(args, piece):
        tokens, pieces, heads, half, token_stride, head_stride = args[5], args[6], args[7], args[8], args[9], args[10]
        dim = 2 * half
        cos, sin, x = np.empty(dim, np.float32), np.empty(dim, np.float32), np.empty(dim, np.float32)
        by_cos, by_sin = np.empty(dim, np.float32), np.empty(dim, np.float32)
        for token in range(tokens * piece // pieces, tokens * (piece + 1) // pieces):
            read_row(array_at(args[2], item, token * dim, dim), cos, bf16)
            read_row(array_at(args[3], item, token * dim, dim), sin, bf16)
            for head in range(heads):
                read_row(array_at(args[1], item, token * token_stride + head * head_stride, dim), x, bf16)
                for d in range(dim):
                    by_cos[d] = x[d] * cos[d]
                for d in range(half):
                    by_sin[d] = -x[d + half] * sin[d]
                for d in range(half):
                    by_sin[d + half] = x[d] * sin[d + half]
                if bf16:
                    round_row(by_cos)
                    round_row(by_sin)
                for d in range(dim):
                    by_cos[d] += by_sin[d]
                write_row(by_cos, array_at(args[4], item, (token * heads + head) * dim, dim), bf16)

    return kernel(rotate)
