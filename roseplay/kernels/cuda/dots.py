"""How matrix products in Triton's kernels are padded and computed. Nothing here imports Triton."""

from __future__ import annotations

import torch


def next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()


def pad(dim: int) -> int:
    """Returns the least power of 2 that is not below ``dim``, and at least 16, the minimum for a matrix product."""
    return max(16, next_power_of_2(dim))


def precision(dtype: torch.dtype) -> str:
    """Returns how products are computed: those of float32 as three of TF32, which only NVIDIA's tensor cores have."""
    if torch.version.hip is not None:
        return "ieee"
    return "tf32x3" if dtype == torch.float32 else "tf32"
