"""Appends to KV blocks and attends to them in place, compiled by Numba if that is installed.

Gathering blocks first, as plain torch must, reads and writes every key and value once more. This file has the calls; the
loops over rows and blocks are in ``decode_loops`` and ``prompt_loops``, the computation on a block in ``decode_vectors``
and ``prompt_vectors``.
"""

from __future__ import annotations

import numpy as np
import torch

from roseplay.kernels.cpu.attention.plan import Decodes, Spans
from roseplay.model.attention.interface import AttentionParams

try:
    from roseplay.kernels.cpu.attention import decode_loops, prompt_loops
    from roseplay.kernels.cpu.attention.decode_vectors import lane_order
    from roseplay.kernels.cpu.parallel import Work
    from roseplay.kernels.cpu.rows import share_rows
except ImportError:  # Numba is an extra
    decode_loops = None  # type: ignore[assignment]

_DTYPES = (torch.float32, torch.bfloat16, torch.int8)
Scales = tuple[torch.Tensor, torch.Tensor]  # of a layer's keys and values, see ``KVCache``
_MANY_PIECES = 4  # a thread


def available(dtype: torch.dtype, device: torch.device) -> bool:
    """Returns whether a cache of this dtype, on this device, can be read in place."""
    return decode_loops is not None and device.type == "cpu" and dtype in _DTYPES


def append_in_place(
    new: torch.Tensor, blocks: torch.Tensor, slots: torch.Tensor, scales: torch.Tensor | None = None
) -> None:
    """Write the keys or the values ``new`` ``[tokens, kv_heads, dim]`` into the ``slots`` ``[tokens]`` of a layer's blocks.

    ``blocks`` is as for ``attend_in_place``, with ``scales`` if it is int8.
    """
    new = _heads_dense(new if scales is not None else new.to(blocks.dtype))
    append = decode_loops.append if scales is None else decode_loops.append_codes
    tensors = (new, blocks, slots) if scales is None else (new, blocks, scales, slots)
    share_rows(append(new.dtype == torch.bfloat16), tensors, len(slots), new.stride(0), *blocks.shape[1:])


def attend_in_place(
    q: torch.Tensor,
    out: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    decodes: Decodes,
    params: AttentionParams,
    scales: Scales | None = None,
) -> None:
    """Make single queries attend to their cached tokens.

    Args:
        q: ``[tokens, heads, k_dim]``, float32 or bfloat16.
        out: ``[tokens, heads, v_dim]``, contiguous, of q's dtype; only the tokens of ``decodes`` are written.
        keys: ``[blocks, kv_heads, block_size, k_dim]``, float32, bfloat16, or int8 with ``scales``.
        values: ``[blocks, kv_heads, block_size, v_dim]``, of the same dtype.
        decodes: planned for the reach of ``params``.

    Scores and sums are float32 whatever the cache holds.
    """
    kv_heads, block_size, k_dim = keys.shape[1:]
    kernel = decode_loops.attend(
        q.dtype == torch.bfloat16,
        8 * keys.itemsize,
        q.shape[1] // kv_heads,
        k_dim,
        values.shape[-1],
        block_size,
        bool(params.softcap),
    )
    q = _heads_dense(q)
    floats, sink = _floats(params)
    threads = torch.get_num_threads()
    shares, splits = _shares_and_splits(len(decodes.tokens), kv_heads, threads)
    lanes = len(lane_order(values.shape[-1], 8 * keys.itemsize)) + 2
    parts = np.empty(len(decodes.tokens) * splits * q.shape[1] * lanes if splits > 1 else 0, np.float32)
    ended = np.zeros(len(decodes.tokens) * shares, np.int64)
    arguments = [x.data_ptr() for x in (q, out, keys, values, *(scales or (keys, values)))]
    arguments += [array.ctypes.data for array in (floats, sink, parts, ended)]
    arguments += [
        q.stride(0),
        kv_heads,
        shares,
        splits,
        0 if params.sinks is None else len(sink),
        threads,
        *decodes.arguments(),
    ]
    # Converted sinks are a tensor of the step, which a replay computes again: a reference would prevent its memory from
    # being reused.
    hold = (floats, decodes, parts, ended, sink if params.sinks is None else None)
    Work(kernel, arguments, shares * splits, hold, rows=decodes.count).run()


def prompt_span(q: torch.Tensor, keys: torch.Tensor) -> int | None:
    """Returns the most queries of a span for ``attend_prompts``; None if it does not support their dtype or shape."""
    if keys.dtype not in (q.dtype, torch.int8) or not prompt_loops.fits(q.dtype, keys.shape[-1]):
        return None
    return prompt_loops.span_queries(q.shape[1] // keys.shape[1] // _group_parts(q, keys))


def attend_prompts(
    q: torch.Tensor,
    out: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    spans: Spans,
    params: AttentionParams,
    scales: Scales | None = None,
    *,
    tiled: bool | None = None,
) -> None:
    """Make spans of queries attend to the cached tokens up to each query; arguments are as for ``attend_in_place``, but
    ``values`` may be a part of ``keys``, and ``tiled`` is whether AMX multiplies: None if it can.

    In bfloat16, probabilities are rounded before they are multiplied by values, as torch does.
    """
    kv_heads, block_size, k_dim = keys.shape[1:]
    parts = _group_parts(q, keys)
    groups = kv_heads * parts
    kernel = prompt_loops.attend(
        q.dtype == torch.bfloat16,
        8 * keys.itemsize,
        q.shape[1] // groups,
        parts,
        k_dim,
        values.shape[-1],
        values.stride(2),
        block_size,
        bool(params.softcap),
        prompt_loops.by_tiles(q.dtype) if tiled is None else tiled,
    )
    q = _heads_dense(q)
    floats, sink = _floats(params)
    arguments = [x.data_ptr() for x in (q, out, keys, values, *(scales or (keys, values)))]
    arguments += [floats.ctypes.data, sink.ctypes.data]
    arguments += [
        q.stride(0),
        groups,
        0 if params.sinks is None else len(sink),
        params.reach.window or 0,
        params.reach.chunk or 0,
        *spans.arguments(),
    ]
    Work(kernel, arguments, groups, hold=(floats, spans, sink), rows=spans.count).run()


def _group_parts(q: torch.Tensor, keys: torch.Tensor) -> int:
    """Returns into how many parts of its query heads a KV head's work is split."""
    return prompt_loops.group_parts(q.shape[1] // keys.shape[1], keys.shape[1], torch.get_num_threads())


def _floats(params: AttentionParams) -> tuple[np.ndarray, np.ndarray]:
    """Returns float32 arrays: scaling and softcap (0 for none), and the sinks (for none, one that is not read)."""
    sink = np.zeros(1, np.float32) if params.sinks is None else params.sinks.float().contiguous().numpy()
    return np.array([params.scaling, params.softcap or 0.0], np.float32), sink


def _shares_and_splits(rows: int, kv_heads: int, threads: int) -> tuple[int, int]:
    """Returns into how many shares the KV heads of a row are divided, and into how many splits its blocks.

    There is at least one piece of each row for each thread, so that threads get equal work whatever the rows' lengths,
    but as few as possible, because the heads of a block are adjacent; and as few splits, because their sums are merged.
    """
    choices = [
        (rows * shares * splits, splits, shares)
        for shares in range(1, kv_heads + 1)
        for splits in range(1, threads + 1)
        if kv_heads % shares == 0 and shares * splits >= threads
    ]
    _, splits, shares = min(x for x in choices if x[0] % threads == 0 or x[0] >= _MANY_PIECES * threads)
    return shares, splits


def _heads_dense(x: torch.Tensor) -> torch.Tensor:
    """Returns ``x [tokens, heads, dim]``, copied unless a token's heads are contiguous; tokens may have any stride."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
