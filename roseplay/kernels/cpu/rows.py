"""Rows of float32 or bfloat16 for compiled loops, which compute in float32 and round where torch rounds.

bfloat16 has no type in Numba: its arrays are uint16 here, the upper halves of the float32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch

from roseplay.kernels.cpu.parallel import Work

_DTYPES = (torch.float32, torch.bfloat16)
_LIGHT_NUMBERS = 2**15  # fewer are not worth waking a thread
_PIECE_NUMBERS = 2**11  # a microsecond's work, about the time to reach a waiting thread


def takes(dtype: torch.dtype) -> bool:
    """Returns whether the kernels of this package compute with a dtype."""
    return dtype in _DTYPES


def fits(x: torch.Tensor) -> bool:
    """Returns whether norms and rotary embeddings take a tensor: a supported dtype, on the CPU, contiguous rows."""
    return takes(x.dtype) and x.device.type == "cpu" and x.stride(-1) == 1


def share_rows(
    kernel: Any, tensors: Sequence[torch.Tensor], rows: int, *sizes: int, hold: tuple[Any, ...] = ()
) -> None:
    """Run a kernel on rows, in as many pieces as threads can use.

    Args:
        kernel: its arguments are the tensors' addresses, ``rows``, the number of pieces, then ``sizes``.
        tensors: the first one determines how many numbers are computed.
        hold: as for ``Work``.
    """
    numbers = tensors[0].numel()
    pieces = max(1, min(rows, 2 * torch.get_num_threads(), numbers // _PIECE_NUMBERS))
    arguments = [*(tensor.data_ptr() for tensor in tensors), rows, pieces, *sizes]
    Work(kernel, arguments, pieces, hold, light=numbers < _LIGHT_NUMBERS).run()


@numba.njit(inline="always")
def _rounded(bits):
    """Returns the float32 bits of the nearest bfloat16, ties to even."""
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return (bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)


@numba.njit(inline="always")
def read_row(row, to, bf16):
    """Copy a row to float32 ``to``, converting it if it is bfloat16."""
    bits = to.view(np.uint32)
    for i in range(to.shape[0]):
        if bf16:
            bits[i] = np.uint32(row[i]) << np.uint32(16)
        else:
            to[i] = row[i]


@numba.njit(inline="always")
def write_row(numbers, row, bf16):
    """Copy float32 ``numbers`` to a row, rounding them if it is bfloat16."""
    bits = numbers.view(np.uint32)
    for i in range(row.shape[0]):
        if bf16:
            row[i] = _rounded(bits[i]) >> np.uint32(16)
        else:
            row[i] = numbers[i]


@numba.njit(inline="always")
def quantize_row(numbers, codes):
    """Write float32 ``numbers`` as int8 codes; returns the scale that multiplies these, NaN if a number is not finite."""
    most, zero = np.float32(0), np.float32(0)
    for i in range(codes.shape[0]):
        most = max(most, abs(numbers[i]))
        zero += numbers[i] * np.float32(0)
    inverse = np.float32(127) / most if most > 0 else np.float32(0)
    for i in range(codes.shape[0]):
        codes[i] = np.int8(np.rint(numbers[i] * inverse))
    return most / np.float32(127) + zero


@numba.njit(inline="always")
def round_row(numbers):
    """Round float32 numbers to bfloat16 in place."""
    bits = numbers.view(np.uint32)
    for i in range(bits.shape[0]):
        bits[i] = _rounded(bits[i])


@numba.njit(inline="always")
def copy_row(row, to):
    for i in range(to.shape[0]):
        to[i] = row[i]


@numba.njit(inline="always")
def copy_rows(rows, stride, to, to_stride, count, columns):
    """Copy the first ``columns`` numbers of ``count`` rows; strides are from row to row, in numbers."""
    for row in range(count):
        for column in range(columns):
            to[row * to_stride + column] = rows[row * stride + column]
