"""What the kernels of this folder ask of their arguments."""

from __future__ import annotations

from typing import Any

import torch
from numba import types

from roseplay.kernels.cpu.rows import takes


def item_of(x: torch.Tensor) -> Any:
    """Numba's type for the numbers of a tensor. Raises ``ValueError`` for dtypes that have none here."""
    check(takes(x.dtype) and x.device.type == "cpu", f"{x.dtype} on {x.device.type}")
    return types.uint16 if x.dtype == torch.bfloat16 else types.float32


def check(fits: bool, what: str) -> None:
    """Raises ``ValueError`` unless it fits."""
    if not fits:
        raise ValueError(f"there is no kernel for {what}")


def check_unpacked(options: dict[str, Any]) -> None:
    """Raises ``ValueError`` where these say that a row holds several sequences."""
    check(all(options.get(name) is None for name in ("cu_seqlens", "seq_idx")), "packed sequences")


def head_rows(x: torch.Tensor) -> torch.Tensor:
    """``x [rows, 1, heads, dim]`` or ``[rows, heads, dim]`` as ``[rows, heads * dim]``, whose rows are contiguous."""
    flat = x.reshape(x.shape[0], -1)
    return flat if flat.stride(1) == 1 else flat.contiguous()
