"""Rows of float32 or bfloat16 for compiled loops, which compute in float32 and round where torch rounds."""

from __future__ import annotations

import numba
import numpy as np
import torch

_DTYPES = (torch.float32, torch.bfloat16)
_LIGHT_NUMBERS = 2**15
_PIECE_NUMBERS = 2**11  # a microsecond's work, about as long as it takes to reach a waiting thread


def takes(dtype: torch.dtype) -> bool:
    return dtype in _DTYPES


def fits(x: torch.Tensor) -> bool:
    """Whether norms and rotary embeddings take it: a supported dtype, contiguous rows."""
    return takes(x.dtype) and x.device.type == "cpu" and x.stride(-1) == 1


def pieces_of(x: torch.Tensor) -> tuple[int, int]:
    """The number of rows of ``x [..., dim]``, and of pieces that they are split into."""
    rows = x.numel() // x.shape[-1]
    return rows, max(1, min(rows, 2 * torch.get_num_threads(), x.numel() // _PIECE_NUMBERS))


def is_light(x: torch.Tensor) -> bool:
    """Whether it is too small to be worth waking a thread."""
    return x.numel() < _LIGHT_NUMBERS


@numba.njit(inline="always")
def widen(narrow, wide):
    """bfloat16 bits to float32 bits."""
    for i in range(wide.shape[0]):
        wide[i] = np.uint32(narrow[i]) << np.uint32(16)


@numba.njit(inline="always")
def copy_row(given, to):
    for i in range(to.shape[0]):
        to[i] = given[i]


@numba.njit(inline="always")
def _rounded(bits):
    """The bits of the nearest bfloat16, a tie to the even one; as float32 bits."""
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return (bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)


@numba.njit(inline="always")
def round_row(wide):
    for i in range(wide.shape[0]):
        wide[i] = _rounded(wide[i])


@numba.njit(inline="always")
def narrow_row(wide, narrow):
    for i in range(wide.shape[0]):
        narrow[i] = _rounded(wide[i]) >> np.uint32(16)
