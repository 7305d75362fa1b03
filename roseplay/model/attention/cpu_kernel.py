"""Decode attention that reads KV blocks where they lie, compiled by Numba where that is installed.

Gathering blocks first, as plain torch must, reads and writes every key and value once more. Here each (row, KV head) is
one piece of work for one thread: it walks over the row's blocks once, keeps a running maximum and sum (online softmax;
Milakov and Gimelshein 2018), and all query heads of the group read a block while it is in the first-level cache.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from roseplay.model.batch import Ints

try:
    import numba
except ImportError:  # an extra: without it decodes are gathered
    numba = None

# Numba's simplest threading layer does not bear two calls at once, and two engines of a process would only slow each
# other down.
_one_at_a_time = threading.Lock()
_kernels: dict[torch.dtype, Any] = {}
_LOWEST = np.float32(-3e38)  # not infinity: the kernel may assume that numbers are finite
_FAST = {"reassoc", "contract", "arcp", "nsz"}


def available(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether decodes of this dtype can be read in place."""
    return numba is not None and device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)


def attend_in_place(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: Ints,
    seq_lens: Ints,
    firsts: Ints,
    *,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One query a row over the row's cached tokens ``firsts`` to ``seq_lens - 1``.

    Args:
        q: ``[rows, heads, k_dim]``. keys: ``[blocks, kv_heads, block_size, k_dim]``, float32 or bfloat16; values alike.
        tables: ``[rows, most blocks]``.
        scaling, softcap, sinks: as in ``AttentionBackend.attend``.

    Returns ``[rows, heads, v_dim]`` in float32; scores and sums are float32 whatever the cache holds.
    """
    kernel = _kernels.get(keys.dtype) or _kernels.setdefault(keys.dtype, _compiled(keys.dtype == torch.bfloat16))
    out = torch.empty((q.shape[0], q.shape[1], values.shape[-1]))
    heads = np.zeros(0, np.float32) if sinks is None else sinks.float().numpy()
    with _one_at_a_time:
        _use_threads(torch.get_num_threads())
        kernel(
            (q.float() * scaling).contiguous().numpy(),
            _array(keys),
            _array(values),
            tables,
            seq_lens,
            firsts,
            np.float32(softcap or 0.0),
            heads,
            out.numpy(),
        )
    return out


def _use_threads(number: int) -> None:
    """As many of Numba's threads as torch has. Numba's first call starts its own, and with them sets OpenMP's number, which
    is torch's too where both use one OpenMP: it is put back."""
    numba.set_num_threads(min(number, numba.config.NUMBA_NUM_THREADS))
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)


def _array(blocks: torch.Tensor) -> npt.NDArray[Any]:
    """NumPy has no bfloat16; its bits are the upper half of a float32's."""
    return (blocks.view(torch.uint16) if blocks.dtype == torch.bfloat16 else blocks).numpy()


def _compiled(narrow: bool) -> Callable[..., None]:
    """The kernel for float32 blocks, or for ``narrow`` ones: bfloat16 as uint16, widened block by block."""
    options = {"parallel": True, "nogil": True, "fastmath": _FAST, "error_model": "numpy"}

    def attend(q, keys, values, tables, seq_lens, firsts, softcap, sinks, out):
        rows, heads, k_dim = q.shape
        kv_heads, block_size, v_dim = keys.shape[1], keys.shape[2], values.shape[3]
        group = heads // kv_heads
        # All rows of a KV head come one after the other, so that threads get equal shares of long and short rows.
        for part in numba.prange(rows * kv_heads):
            head, row = part // rows, part % rows
            scores = np.empty((group, block_size), np.float32)
            total = np.zeros((group, v_dim), np.float32)
            weight = np.zeros(group, np.float32)
            top = np.full(group, _LOWEST, np.float32)
            wide_k = np.empty((block_size if narrow else 0, k_dim), np.float32)
            wide_v = np.empty((block_size if narrow else 0, v_dim), np.float32)
            first, last = firsts[row], seq_lens[row]
            for column in range(first // block_size, (last + block_size - 1) // block_size):
                begin = max(first - column * block_size, 0)
                end = min(last - column * block_size, block_size)
                if narrow:
                    _widen(keys[tables[row, column], head], wide_k.view(np.uint32), begin, end)
                    _widen(values[tables[row, column], head], wide_v.view(np.uint32), begin, end)
                    k, v = wide_k, wide_v
                else:
                    k, v = keys[tables[row, column], head], values[tables[row, column], head]
                for member in range(group):
                    query = q[row, head * group + member]
                    highest = top[member]
                    for t in range(begin, end):
                        score = np.float32(0)
                        for d in range(k_dim):
                            score += query[d] * k[t, d]
                        if softcap > 0:
                            score = softcap * math.tanh(score / softcap)
                        scores[member, t] = score
                        highest = max(highest, score)
                    fade = math.exp(top[member] - highest)
                    top[member] = highest
                    weight[member] *= fade
                    for d in range(v_dim):
                        total[member, d] *= fade
                    for t in range(begin, end):
                        share = np.float32(math.exp(scores[member, t] - highest))
                        weight[member] += share
                        for d in range(v_dim):
                            total[member, d] += share * v[t, d]
            for member in range(group):
                number = head * group + member
                if sinks.shape[0]:
                    highest = max(top[member], sinks[number])
                    fade = math.exp(top[member] - highest)
                    weight[member] = weight[member] * fade + math.exp(sinks[number] - highest)
                    for d in range(v_dim):
                        total[member, d] *= fade
                for d in range(v_dim):
                    out[row, number, d] = total[member, d] / weight[member]

    try:
        return numba.njit(cache=True, **options)(attend)
    except RuntimeError:  # no folder to keep the machine code in: compile in every process
        return numba.njit(**options)(attend)


def _spread(narrow, wide, begin, end):
    """bfloat16 bits to float32 bits, for some tokens of a block."""
    for t in range(begin, end):
        for d in range(narrow.shape[1]):
            wide[t, d] = np.uint32(narrow[t, d]) << np.uint32(16)


_widen = _spread if numba is None else numba.njit(inline="always")(_spread)
