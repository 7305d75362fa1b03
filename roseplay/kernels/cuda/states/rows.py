"""How the rows of a packed batch are divided among the programs of this folder's kernels."""

from __future__ import annotations

import numpy as np
import torch

from roseplay.kernels.state_functions import packed_rows
from roseplay.model.states import SlotStates
from roseplay.model.upload import to_device

# Chosen by compiling for compute capability 8.0 and gfx942: larger chunks or parts need more registers than there are. A
# product of float32 takes three of TF32, with operands of their own.
_CHUNK = {torch.float32: 16}
_HALF_CHUNK = 32
_NUM_WARPS = 8


def chunk_of(dtype: torch.dtype) -> int:
    """Returns the number of tokens of a chunk, and of numbers of a head's values that a program computes."""
    return _CHUNK.get(dtype, _HALF_CHUNK)


def launch_options() -> dict[str, int]:
    """Returns Triton's options for kernels with products; the loops over chunks are too large to be pipelined."""
    return {"num_warps": _NUM_WARPS if torch.version.hip is None else _NUM_WARPS // 2, "num_stages": 1}


def chunks_of(states: SlotStates, chunk: int) -> torch.Tensor:
    """Returns the chunks of all rows, int64 ``[chunks, 2]``: the row, and the number of the chunk in it; cached for a
    step's layers."""
    rows = packed_rows(states)
    chunks: torch.Tensor | None = rows.memo.get((chunks_of, chunk))
    if chunks is None:
        counts = -(-np.diff(rows.host_cu_seqlens) // chunk)
        row = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(row)) - np.repeat(counts.cumsum() - counts, counts)
        chunks = to_device(np.stack([row, number], 1).tolist(), torch.int64, states.tensor.device)
        rows.memo[chunks_of, chunk] = chunks
    return chunks


def dense(x: torch.Tensor) -> torch.Tensor:
    """Returns ``x [tokens, heads, dim]``, copied unless a token's heads are contiguous; tokens may have any stride."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
