"""Rotary embeddings in one compiled pass: spelled out they are fourteen of torch's calls."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.parallel import share_out
from roseplay.kernels.cpu.rows import copy_row, fits, is_light, narrow_row, pieces_of, round_row, widen
from roseplay.kernels.cpu.simd import kernel, moved, pointer


def can_rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether ``rotate`` takes these: one packed row, whole heads, a half for a half."""
    alike = cos.shape == sin.shape == (1, q.shape[2], q.shape[3]) and q.shape[3] == k.shape[3] and q.shape[0] == 1
    alike = alike and q.dtype == k.dtype == cos.dtype == sin.dtype
    return alike and fits(q) and fits(k) and fits(cos) and fits(sin) and cos.is_contiguous() and sin.is_contiguous()


def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary embedding of ``q`` and ``k`` ``[1, heads, tokens, dim]`` by ``cos`` and ``sin`` ``[1, tokens, dim]``: a number and
    the one half a head further on are a pair. The results lie token by token."""
    outs = []
    for x in (q, k):
        heads, tokens, dim = x.shape[1:]
        out = torch.empty((1, tokens, heads, dim), dtype=x.dtype).transpose(1, 2)
        pieces = min(pieces_of(x)[1], tokens)
        places = (t.data_ptr() for t in (x, cos, sin, out))
        sizes = (tokens, pieces, heads, dim // 2, x.stride(2), x.stride(1))
        share_out(_rotate(x.dtype == torch.bfloat16), [*places, *sizes], pieces, light=is_light(x))
        outs.append(out)
    return outs[0], outs[1]


@cache
def _rotate(narrow: bool) -> Any:
    item = types.uint16 if narrow else types.float32

    def rotate(given, piece):
        x_at, cos_at, sin_at, out_at, tokens, pieces = given[1], given[2], given[3], given[4], given[5], given[6]
        heads, half, by_token, by_head = given[7], given[8], given[9], given[10]
        dim = 2 * half
        cos, sin, x = np.empty(dim, np.float32), np.empty(dim, np.float32), np.empty(dim, np.float32)
        turned, across = np.empty(dim, np.float32), np.empty(dim, np.float32)
        for token in range(tokens * piece // pieces, tokens * (piece + 1) // pieces):
            given_cos = numba.carray(moved(pointer(cos_at, item), token * dim), dim)
            given_sin = numba.carray(moved(pointer(sin_at, item), token * dim), dim)
            if narrow:
                widen(given_cos, cos.view(np.uint32))
                widen(given_sin, sin.view(np.uint32))
            else:
                copy_row(given_cos, cos)
                copy_row(given_sin, sin)
            for head in range(heads):
                given = numba.carray(moved(pointer(x_at, item), token * by_token + head * by_head), dim)
                out = numba.carray(moved(pointer(out_at, item), (token * heads + head) * dim), dim)
                if narrow:
                    widen(given, x.view(np.uint32))
                else:
                    copy_row(given, x)
                for d in range(dim):
                    turned[d] = x[d] * cos[d]
                for d in range(half):
                    across[d] = -x[d + half] * sin[d]
                for d in range(half):
                    across[d + half] = x[d] * sin[d + half]
                if narrow:
                    round_row(turned.view(np.uint32))
                    round_row(across.view(np.uint32))
                for d in range(dim):
                    turned[d] += across[d]
                if narrow:
                    narrow_row(turned.view(np.uint32), out)
                else:
                    copy_row(turned, out)

    return kernel(rotate)
