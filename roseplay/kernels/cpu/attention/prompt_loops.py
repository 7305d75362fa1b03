"""The compiled loops of prompt attention: many queries of one request attend to its cached tokens.

After FlashAttention (Dao et al. 2022). Both products, queries with keys and probabilities with values, are computed by the
tiles of ``cpu.tiles``, or, in bfloat16, by those of ``cpu.amx`` if the CPU has them. A piece of work is a span of
queries under one KV head. It goes through the cached tokens in chunks: it lays out a chunk's keys and values as strips,
which all tiles of its queries then read from the second-level cache. Tiles whose queries see no token of a chunk skip
it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu import amx
from roseplay.kernels.cpu.attention.decode_loops import ITEMS, add_sinks
from roseplay.kernels.cpu.attention.decode_vectors import LOWEST
from roseplay.kernels.cpu.attention.prompt_vectors import interleave_pairs, online_softmax_update, transpose_16x16
from roseplay.kernels.cpu.features import has_amx
from roseplay.kernels.cpu.rows import copy_row, write_row
from roseplay.kernels.cpu.simd import LANES, address, advance, array_at, kernel, pointer
from roseplay.kernels.cpu.tiles import MOST_ROWS, STRIP, available, multiply_tile

KEY_CHUNK = 128  # cached tokens, a multiple of STRIP
_SPAN_ROWS = 192  # rows of a span (queries times heads of a group), which share the cost of laying out a chunk
_LEAST_HEADS = 8  # of a large group that is split over threads, so that laying out a chunk is a small part of the work
_FLOAT_BYTES = 4

# Indices of the kernel's arguments: addresses, its own first, then sizes.
(
    _KERNEL, Q, OUT, KEYS, VALUES, KEY_SCALES, VALUE_SCALES, FLOATS, SINKS, Q_STRIDE, GROUPS, NUM_SINKS, WINDOW, CHUNK,
    TOKENS, COUNTS, POSITIONS, TABLES, SPANS, WIDTH,
) = range(20)  # fmt: skip


def fits(dtype: torch.dtype, k_dim: int) -> bool:
    """Returns whether the kernel can run on this CPU, with heads of ``k_dim`` numbers."""
    return available(dtype) and (dtype == torch.float32 or k_dim % 2 == 0)


def by_tiles(dtype: torch.dtype) -> bool:
    """Returns whether AMX multiplies numbers of this dtype on this CPU."""
    return dtype == torch.bfloat16 and has_amx()


def span_queries(group: int) -> int:
    """Returns the most queries of a span if ``group`` query heads share a KV head."""
    return max(1, _SPAN_ROWS // group)


def group_parts(group: int, kv_heads: int, threads: int) -> int:
    """Returns into how many parts the heads of a group are split, so that a single query gives each thread work."""
    parts = 1
    while parts * kv_heads < threads and group % (2 * parts) == 0 and group // (2 * parts) >= _LEAST_HEADS:
        parts *= 2
    return parts


@numba.njit(inline="always")
def _copy_cached(cache, scales, table, head, kv_heads, block_size, dim, stride, first, rows, bits, bf16):
    """Copy the cached keys or values of one KV head, from token ``first`` on, to ``rows``; tokens are ``stride`` apart."""
    numbers = np.empty(dim if bits == 8 else 0, np.float32)
    for i in range(len(rows)):
        block, offset = table[(first + i) // block_size], (first + i) % block_size
        at = (block * kv_heads + head) * block_size + offset
        cached = numba.carray(advance(cache, at * stride), dim)
        if bits == 8:
            for d in range(dim):
                numbers[d] = np.float32(cached[d]) * scales[at]
            write_row(numbers, rows[i, :dim], bf16)
        else:
            copy_row(cached, rows[i, :dim])


@numba.njit(inline="always")
def _lay_out(keys, values, key_strips, value_strips, tokens, step):
    """Lay out tokens' keys and values as strips: of 32 tokens for keys, and of 32 of their numbers for values."""
    k_wide, v_wide = keys.shape[1], values.shape[1]
    for strip in range((tokens + STRIP - 1) // STRIP):
        for half in range(STRIP // LANES):
            source, target = (strip * STRIP + half * LANES) * k_wide, strip * STRIP * k_wide + half * LANES * step
            for word in range(0, k_wide, LANES * step):
                transpose_16x16(
                    address(keys, source + word), k_wide // step, address(key_strips, target + word * STRIP), STRIP
                )
        for part in range(v_wide // STRIP):
            for i in range(strip * STRIP, (strip + 1) * STRIP, step):
                source, target = i * v_wide + part * STRIP, (part * KEY_CHUNK + i) * STRIP
                if step == 2:
                    interleave_pairs(
                        address(values, source), address(values, source + v_wide), address(value_strips, target)
                    )
                else:
                    numbers = values[i, part * STRIP : (part + 1) * STRIP]
                    copy_row(numbers, value_strips[part, i * STRIP : (i + 1) * STRIP])


@numba.njit(inline="always")
def _first_seen(position, window, chunk):
    """Returns the first token that the one at ``position`` sees, as ``Reach.first``; ``window`` or ``chunk`` is 0."""
    if chunk:
        return position - position % chunk
    return position + 1 - window if window else 0


@numba.njit(inline="always")
def _write_out(out, total, weight, group, heads, bf16):
    """Write ``total / weight`` to ``out``: ``group`` rows of a token one after the other, ``heads`` rows per token."""
    for row in range(len(total)):
        scale = 1 / weight[row]
        for d in range(total.shape[1]):
            total[row, d] *= scale
        write_row(total[row], out[row // group * heads + row % group], bf16)


@numba.njit(inline="always")
def _multiply(x, stride, strip, words, out, out_stride, zeros, rows, tiled):
    """Write ``rows`` rows of x (the rows of a tile, a literal) times a strip to ``out``."""
    if tiled:
        amx.multiply(x, 2 * stride, strip, words // LANES, out, _FLOAT_BYTES * out_stride, 2, 0, 0)
    else:
        multiply_tile(x, stride, strip, zeros, 0, words, out, out_stride, rows)


@numba.njit(inline="always")
def _multiply_add(x, stride, strip, words, out, out_stride, rows, tiled):
    """The same, added to ``out``."""
    if tiled:
        amx.multiply(x, 2 * stride, strip, words // LANES, out, _FLOAT_BYTES * out_stride, 2, 0, 1)
    else:
        multiply_tile(x, stride, strip, out, out_stride, words, out, out_stride, rows)


@cache
def attend(
    bf16: bool,
    bits: int,
    group: int,
    parts: int,
    k_dim: int,
    v_dim: int,
    v_stride: int,
    block_size: int,
    capped: bool,
    tiled: bool,
) -> Any:
    """Returns the kernel for one shape of layer; a piece of its work is one group of one span.

    Args:
        bf16: queries and out are bfloat16 (as uint16), else float32.
        bits: of a cached number: 8 for int8, else as many as a query's.
        group: query heads of a piece, of which a KV head has ``parts`` groups.
        v_stride: numbers between the values of two tokens.
        capped: as in ``decode_loops.attend``.
        tiled: multiply bfloat16 by AMX's tiles.
    """
    most, step = amx.MOST_ROWS if tiled else MOST_ROWS, 2 if bf16 else 1
    k_words = k_dim // step  # a word is what a lane holds: a float32 or two bfloat16
    k_wide = -(-k_words // LANES) * LANES * step
    k_words = k_wide // step if tiled else k_words
    v_wide = -(-v_dim // STRIP) * STRIP
    v_strips = v_wide // STRIP
    item, zero = (types.uint16, np.uint16) if bf16 else (types.float32, np.float32)
    cached = ITEMS[bits]
    is_capped = int(capped)

    def attend(args, piece):
        groups, window, chunk = args[GROUPS], args[WINDOW], args[CHUNK]
        kv_heads = groups // parts
        # The last spans see the most tokens, so they start first.
        span, head = pointer(args[SPANS], types.int64)[0] - 1 - piece // groups, piece % groups
        token = pointer(args[TOKENS], types.int64)[span]
        count = pointer(args[COUNTS], types.int64)[span]
        position = pointer(args[POSITIONS], types.int64)[span]
        table = array_at(args[TABLES], types.int64, span * args[WIDTH], args[WIDTH])
        floats = pointer(args[FLOATS], types.float32)
        scaling, softcap = floats[0], floats[1]
        rows = count * group
        tiles = (rows + most - 1) // most

        query = np.zeros((tiles * most, k_wide), zero)
        for row in range(rows):
            begin = (token + row // group) * args[Q_STRIDE] + (head * group + row % group) * k_dim
            copy_row(array_at(args[Q], item, begin, k_dim), query[row, :k_dim])
        total, weight = np.zeros((tiles * most, v_wide), np.float32), np.zeros(tiles * most, np.float32)
        top = np.full(tiles * most, LOWEST, np.float32)
        keys, values = np.zeros((KEY_CHUNK, k_wide), zero), np.zeros((KEY_CHUNK, v_wide), zero)
        key_strips = np.empty((KEY_CHUNK // STRIP, k_wide * STRIP), zero)
        value_strips = np.empty((v_strips, KEY_CHUNK * STRIP), zero)
        scores, probabilities = np.empty((most, KEY_CHUNK), np.float32), np.empty((most, KEY_CHUNK), zero)
        zeros = np.zeros(STRIP, np.float32)
        if tiled:
            config = np.zeros(amx.CONFIG_BYTES, np.uint8)
            amx.configure(config, most)
            amx.load_config(address(config, 0))

        first = max(0, _first_seen(position, window, chunk)) // KEY_CHUNK * KEY_CHUNK
        for begin in range(first, position + count, KEY_CHUNK):
            tokens = min(KEY_CHUNK, position + count - begin)
            _copy_cached(
                pointer(args[KEYS], cached), pointer(args[KEY_SCALES], types.float32), table, head // parts, kv_heads,
                block_size, k_dim, k_dim, begin, keys[:tokens], bits, bf16,
            )  # fmt: skip
            _copy_cached(
                pointer(args[VALUES], cached), pointer(args[VALUE_SCALES], types.float32), table, head // parts, kv_heads,
                block_size, v_dim, v_stride, begin, values[:tokens], bits, bf16,
            )  # fmt: skip
            _lay_out(keys, values, key_strips, value_strips, tokens, step)
            for tile in range(tiles):
                at = tile * most
                # The chunk's tokens that some query of the tile sees.
                end = min(tokens, position + (min(at + most, rows) - 1) // group + 1 - begin)
                start = _first_seen(position + at // group, window, chunk) - begin
                if end <= 0 or start >= end:
                    continue
                strips = (end + STRIP - 1) // STRIP
                for strip in range(strips):
                    _multiply(
                        address(query, at * k_wide), k_wide, address(key_strips, strip * k_wide * STRIP), k_words,
                        address(scores, strip * STRIP), KEY_CHUNK, address(zeros, 0), most, tiled,
                    )  # fmt: skip
                for row in range(most):
                    query_at = position + (at + row) // group
                    last = query_at + 1 - begin if at + row < rows else 0
                    rescale = online_softmax_update(
                        address(scores, row * KEY_CHUNK), address(probabilities, row * KEY_CHUNK), strips * (STRIP // LANES),
                        _first_seen(query_at, window, chunk) - begin, last, scaling, softcap,
                        address(top, at + row), address(weight, at + row), is_capped,
                    )  # fmt: skip
                    if rescale != 1:
                        for d in range(v_wide):
                            total[at + row, d] *= rescale
                for strip in range(v_strips):
                    _multiply_add(
                        address(probabilities, 0), KEY_CHUNK, address(value_strips, strip * KEY_CHUNK * STRIP),
                        strips * STRIP // step, address(total, at * v_wide + strip * STRIP), v_wide, most, tiled,
                    )  # fmt: skip

        if tiled:
            amx.release()
        if args[NUM_SINKS]:
            add_sinks(total[:rows], weight, top, array_at(args[SINKS], types.float32, head * group, group))
        first_out = advance(pointer(args[OUT], item), (token * groups + head) * group * v_dim)
        out = numba.carray(first_out, (count * groups * group, v_dim))
        _write_out(out, total[:rows], weight, group, groups * group, bf16)

    return kernel(attend)
