"""The compiled loops of prompt attention: many queries of one request, over what it has in the cache.

Both products, of queries with keys and of what these weigh with values, go through the tiles of ``cpu.tiles``. A piece
of work is a span of queries under one KV head. It takes up a stretch of the cached tokens at a time, lays their keys and
values out as strips, and lets all tiles of its queries pass over them while they are in the second-level cache (Dao et
al., FlashAttention, 2022). Tiles that see none of a stretch are left out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.attention.decode_loops import add_sinks
from roseplay.kernels.cpu.attention.decode_vectors import LOWEST
from roseplay.kernels.cpu.attention.prompt_vectors import interleave_pairs, online_softmax_update, transpose_16x16
from roseplay.kernels.cpu.rows import copy_row, narrow_row
from roseplay.kernels.cpu.simd import LANES, address, kernel, moved, pointer
from roseplay.kernels.cpu.tiles import MOST_ROWS, STRIP, available, whole_tile

STRETCH = 128  # tokens; whole strips
_SPAN_ROWS = 192  # queries times heads of a group: what a stretch is laid out for

# What the kernel is told, by number: addresses, then sizes. The first one is its own.
(
    _KERNEL, Q, OUT, KEYS, VALUES, FLOATS, SINKS, Q_STRIDE, KV_HEADS, NUM_SINKS, WINDOW,
    TOKENS, COUNTS, POSITIONS, TABLES, SPANS, WIDTH,
) = range(17)  # fmt: skip


def fits(dtype: torch.dtype, k_dim: int) -> bool:
    """Whether this CPU and a layer's shape allow it."""
    return available(dtype) and (dtype == torch.float32 or k_dim % 2 == 0)


def span_queries(group: int) -> int:
    """Queries of a span, where so many query heads share a KV head."""
    return max(1, _SPAN_ROWS // group)


@numba.njit(inline="always")
def _take_cached(cache, table, head, kv_heads, block_size, dim, first, rows):
    """Tokens from ``first`` on, as many as ``rows`` has, from their blocks."""
    for i in range(len(rows)):
        block, offset = table[(first + i) // block_size], (first + i) % block_size
        begin = ((block * kv_heads + head) * block_size + offset) * dim
        copy_row(numba.carray(moved(cache, begin), dim), rows[i, :dim])


@numba.njit(inline="always")
def _lay_out(keys, values, key_strips, value_strips, tokens, step):
    """Tokens' keys and values as strips: of keys one for 32 tokens, of values one for 32 of their numbers."""
    k_wide, v_wide = keys.shape[1], values.shape[1]
    for strip in range((tokens + STRIP - 1) // STRIP):
        for half in range(STRIP // LANES):
            from_, to = (strip * STRIP + half * LANES) * k_wide, strip * STRIP * k_wide + half * LANES * step
            for word in range(0, k_wide, LANES * step):
                transpose_16x16(
                    address(keys, from_ + word), k_wide // step, address(key_strips, to + word * STRIP), STRIP
                )
        for part in range(v_wide // STRIP):
            for i in range(strip * STRIP, (strip + 1) * STRIP, step):
                from_, to = i * v_wide + part * STRIP, (part * STRETCH + i) * STRIP
                if step == 2:
                    interleave_pairs(address(values, from_), address(values, from_ + v_wide), address(value_strips, to))
                else:
                    numbers = values[i, part * STRIP : (part + 1) * STRIP]
                    copy_row(numbers, value_strips[part, i * STRIP : (i + 1) * STRIP])


@numba.njit(inline="always")
def _give_out(out, total, weight, group, heads, narrow):
    """``total`` over ``weight``: a token's ``group`` rows side by side in ``out``, the next token's ``heads`` rows on."""
    for row in range(len(total)):
        share = 1 / weight[row]
        for d in range(total.shape[1]):
            total[row, d] *= share
        result = out[row // group * heads + row % group]
        if narrow:
            narrow_row(total[row].view(np.uint32)[: len(result)], result)
        else:
            copy_row(total[row, : len(result)], result)


@cache
def attend(narrow: bool, group: int, k_dim: int, v_dim: int, block_size: int, capped: bool) -> Any:
    """The kernel for one shape of layer: attends with one KV head's share of one span.

    Args:
        narrow: queries, keys, values and out are bfloat16 (as uint16), else float32.
        group, capped: as in ``decode_loops.attend``.
    """
    most, step = MOST_ROWS, 2 if narrow else 1
    k_words = k_dim // step  # a word is what a lane multiplies: a float32 or two bfloat16
    k_wide = -(-k_words // LANES) * LANES * step
    v_wide = -(-v_dim // STRIP) * STRIP
    v_strips = v_wide // STRIP
    item, zero = (types.uint16, np.uint16) if narrow else (types.float32, np.float32)
    is_capped = int(capped)

    def attend(given, piece):
        kv_heads, window = given[KV_HEADS], given[WINDOW]
        # The last spans see most: they come first.
        span, head = given[SPANS] - 1 - piece // kv_heads, piece % kv_heads
        token = pointer(given[TOKENS], types.int64)[span]
        count = pointer(given[COUNTS], types.int64)[span]
        position = pointer(given[POSITIONS], types.int64)[span]
        table = numba.carray(moved(pointer(given[TABLES], types.int64), span * given[WIDTH]), given[WIDTH])
        floats = numba.carray(pointer(given[FLOATS], types.float32), 2)
        scaling, softcap = floats[0], floats[1]
        rows = count * group
        tiles = (rows + most - 1) // most

        query = np.zeros((tiles * most, k_dim), zero)
        for row in range(rows):
            begin = (token + row // group) * given[Q_STRIDE] + (head * group + row % group) * k_dim
            copy_row(numba.carray(moved(pointer(given[Q], item), begin), k_dim), query[row])
        total, weight = np.zeros((tiles * most, v_wide), np.float32), np.zeros(tiles * most, np.float32)
        top = np.full(tiles * most, LOWEST, np.float32)
        keys, values = np.zeros((STRETCH, k_wide), zero), np.zeros((STRETCH, v_wide), zero)
        key_strips = np.empty((STRETCH // STRIP, k_wide * STRIP), zero)
        value_strips = np.empty((v_strips, STRETCH * STRIP), zero)
        scores, probabilities = np.empty((most, STRETCH), np.float32), np.empty((most, STRETCH), zero)
        nothing = np.zeros(STRIP, np.float32)

        first = max(0, position + 1 - window) // STRETCH * STRETCH if window else 0
        for begin in range(first, position + count, STRETCH):
            tokens = min(STRETCH, position + count - begin)
            _take_cached(pointer(given[KEYS], item), table, head, kv_heads, block_size, k_dim, begin, keys[:tokens])
            _take_cached(pointer(given[VALUES], item), table, head, kv_heads, block_size, v_dim, begin, values[:tokens])
            _lay_out(keys, values, key_strips, value_strips, tokens, step)
            for tile in range(tiles):
                at = tile * most
                # Of the stretch's tokens, those that some query of the tile sees.
                end = min(tokens, position + (min(at + most, rows) - 1) // group + 1 - begin)
                start = position + at // group + 1 - window - begin if window else 0
                if end <= 0 or start >= end:
                    continue
                strips = (end + STRIP - 1) // STRIP
                for strip in range(strips):
                    whole_tile(
                        address(query, at * k_dim), k_dim, address(key_strips, strip * k_wide * STRIP), address(nothing, 0), 0,
                        k_words, address(scores, strip * STRIP), STRETCH, most,
                    )  # fmt: skip
                for row in range(most):
                    last = position + (at + row) // group + 1 - begin if at + row < rows else 0
                    rescale = online_softmax_update(
                        address(scores, row * STRETCH), address(probabilities, row * STRETCH), strips * (STRIP // LANES),
                        last - window if window else 0, last, scaling, softcap,
                        address(top, at + row), address(weight, at + row), is_capped,
                    )  # fmt: skip
                    if rescale != 1:
                        for d in range(v_wide):
                            total[at + row, d] *= rescale
                for strip in range(v_strips):
                    to = address(total, at * v_wide + strip * STRIP)
                    whole_tile(
                        address(probabilities, 0), STRETCH, address(value_strips, strip * STRETCH * STRIP), to, v_wide,
                        strips * STRIP // step, to, v_wide, most,
                    )  # fmt: skip

        out = moved(pointer(given[OUT], item), (token * kv_heads + head) * group * v_dim)
        if given[NUM_SINKS]:
            sinks = numba.carray(moved(pointer(given[SINKS], types.float32), head * group), group)
            add_sinks(total[:rows], weight, top, sinks)
        _give_out(
            numba.carray(out, (count * kv_heads * group, v_dim)), total[:rows], weight, group, kv_heads * group, narrow
        )

    return kernel(attend)
