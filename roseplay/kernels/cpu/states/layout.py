"""Checks and conversions of the arguments of this folder's kernels."""

from __future__ import annotations

from typing import Any

import torch
from numba import types

from roseplay.kernels.cpu.rows import takes
from roseplay.kernels.state_functions import check, packed_rows
from roseplay.model.states import SlotStates


def item_of(x: torch.Tensor) -> Any:
    """Returns Numba's type for the numbers of a tensor; raises ``ValueError`` if it is unsupported or not on a CPU."""
    check(takes(x.dtype) and x.device.type == "cpu", f"{x.dtype} on {x.device.type}")
    return types.uint16 if x.dtype == torch.bfloat16 else types.float32


def head_rows(x: torch.Tensor) -> torch.Tensor:
    """Returns ``x [rows, 1, heads, dim]`` or ``[rows, heads, dim]`` as ``[rows, heads * dim]`` with contiguous rows."""
    flat = x.reshape(x.shape[0], -1)
    return flat if flat.stride(1) == 1 else flat.contiguous()


def addresses(states: SlotStates) -> tuple[int, list[int]]:
    """Returns the number of rows of a packed batch, and the addresses of their slots, ``cu_seqlens`` and ``seq_lens``.

    Raises ``ValueError`` if the states are those of single tokens.
    """
    rows = packed_rows(states)
    return len(rows.seq_lens), [x.data_ptr() for x in (states.slots, rows.cu_seqlens, rows.seq_lens)]
