"""The compiled loops over tokens to append, and over single queries and the blocks that they attend to.

A thread goes through a row's blocks once, with some of its KV heads, and all query heads of a group read a block while
it is in the first-level cache. Blocks are scattered in memory, so the processor prefetches little by itself: each block
is prefetched while the previous one is computed. If there are too few pieces for threads to share evenly, a row's blocks
are split too, and the piece that ends last merges the sums of all (as in Flash-Decoding, Dao et al. 2023).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from roseplay.kernels.cpu.attention.decode_vectors import LOWEST, attend_tokens, lane_order
from roseplay.kernels.cpu.parallel import atomic_increment
from roseplay.kernels.cpu.rows import copy_row, quantize_row, read_row, write_row
from roseplay.kernels.cpu.simd import LANES, address, advance, array_at, kernel, pointer, prefetch

# Indices of the kernel's arguments: addresses, its own first, then sizes.
(
    _KERNEL, Q, OUT, KEYS, VALUES, KEY_SCALES, VALUE_SCALES, FLOATS, SINKS, PARTS, ENDED, Q_STRIDE, KV_HEADS,
    SHARES, SPLITS, NUM_SINKS, THREADS, TOKENS, SEQ_LENS, FIRSTS, TABLES, ROWS, WIDTH,
) = range(23)  # fmt: skip

# Types of cached numbers by their bits; bfloat16 as uint16.
ITEMS = {8: types.int8, 16: types.uint16, 32: types.float32}


@cache
def append(bf16: bool) -> Any:
    """Returns the kernel that writes tokens ``[tokens, heads, dim]``, ``stride`` numbers apart, to their slots of a
    cache ``[blocks, heads, block_size, dim]``. ``bf16``: the cache is bfloat16."""
    item = types.uint16 if bf16 else types.uint32

    def append(args, piece):
        tokens, pieces, stride, heads, block_size, dim = args[4], args[5], args[6], args[7], args[8], args[9]
        slots = array_at(args[3], types.int64, 0, tokens)
        for token in range(tokens * piece // pieces, tokens * (piece + 1) // pieces):
            block, offset = slots[token] // block_size, slots[token] % block_size
            for head in range(heads):
                new = array_at(args[1], item, token * stride + head * dim, dim)
                cached = array_at(args[2], item, ((block * heads + head) * block_size + offset) * dim, dim)
                copy_row(new, cached)

    return kernel(append)


@cache
def append_codes(bf16: bool) -> Any:
    """Returns the kernel that does the same for a cache in int8, whose scales follow it. ``bf16``: the tokens are bfloat16."""
    item = types.uint16 if bf16 else types.float32

    def append_codes(args, piece):
        tokens, pieces, stride, heads, block_size, dim = args[5], args[6], args[7], args[8], args[9], args[10]
        slots = array_at(args[4], types.int64, 0, tokens)
        numbers = np.empty(dim, np.float32)
        for token in range(tokens * piece // pieces, tokens * (piece + 1) // pieces):
            block, offset = slots[token] // block_size, slots[token] % block_size
            for head in range(heads):
                read_row(array_at(args[1], item, token * stride + head * dim, dim), numbers, bf16)
                at = (block * heads + head) * block_size + offset
                scale = quantize_row(numbers, array_at(args[2], types.int8, at * dim, dim))
                pointer(args[3], types.float32)[at] = scale

    return kernel(append_codes)


@numba.njit(inline="always")
def _load_queries(query, q, order, scaling, bf16):
    """Write ``q [heads, dim]`` times ``scaling`` to the lanes of ``query``, in ``lane_order``; unused lanes stay 0."""
    bits = query.view(np.uint32)
    for head in range(len(query)):
        for lane in range(len(order)):
            d = order[lane]
            if d >= 0 and bf16:
                bits[head, lane] = np.uint32(q[head, d]) << np.uint32(16)
            elif d >= 0:
                query[head, lane] = q[head, d]
            query[head, lane] *= scaling


@numba.njit(inline="always")
def add_sinks(total, weight, top, sinks):
    """Add a sink to the softmax of each row, as a token without a value; row i has ``sinks[i % len(sinks)]``."""
    for row in range(len(total)):
        sink = sinks[row % len(sinks)]
        highest = max(top[row], sink)
        rescale = np.float32(math.exp(top[row] - highest))
        weight[row] = weight[row] * rescale + np.float32(math.exp(sink - highest))
        for d in range(total.shape[1]):
            total[row, d] *= rescale


@numba.njit(inline="always")
def _add_part(total, weight, top, part):
    """Add the sums of another part of the tokens, as ``_keep_part`` stores them."""
    for row in range(len(total)):
        other = part[row]
        highest = max(top[row], other[0])
        mine, theirs = np.float32(math.exp(top[row] - highest)), np.float32(math.exp(other[0] - highest))
        top[row], weight[row] = highest, weight[row] * mine + other[1] * theirs
        for d in range(total.shape[1]):
            total[row, d] = total[row, d] * mine + other[2 + d] * theirs


@numba.njit(inline="always")
def _keep_part(total, weight, top, part):
    for row in range(len(total)):
        part[row, 0], part[row, 1] = top[row], weight[row]
        for d in range(total.shape[1]):
            part[row, 2 + d] = total[row, d]


@numba.njit(inline="always")
def _write_out(out, total, weight, lanes, bf16):
    """Write ``total / weight`` to ``out [heads, dim]``; ``lanes`` is the lane of each number."""
    row = np.empty(len(lanes), np.float32)
    for head in range(len(out)):
        for d in range(len(lanes)):
            row[d] = total[head, lanes[d]] / weight[head]
        write_row(row, out[head], bf16)


@cache
def attend(bf16_q: bool, bits: int, group: int, k_dim: int, v_dim: int, block_size: int, capped: bool) -> Any:
    """Returns the kernel for one shape of layer; a piece of its work is one share of one row's KV heads, and one of its
    splits.

    Args:
        bf16_q: q and out are bfloat16 (as uint16), else float32.
        bits: of a cached number, see ``ITEMS``.
        group: query heads per KV head.
        capped: there is a softcap.
    """
    k_order, v_order = lane_order(k_dim, bits), lane_order(v_dim, bits)
    k_size, v_size = len(k_order), len(v_order)
    v_lanes = np.argsort(v_order, kind="stable")[v_size - v_dim :]  # of each number; unused lanes sort first
    at_once = math.gcd(block_size, LANES)
    parts = block_size // at_once
    shape = f"{group},{k_dim},{v_dim},{at_once},{int(capped)}"
    k_block, v_block, k_part, v_part = (n * dim for n in (block_size, at_once) for dim in (k_dim, v_dim))
    item, item_q = ITEMS[bits], ITEMS[16 if bf16_q else 32]

    def attend(args, piece):
        rows, kv_heads, shares = pointer(args[ROWS], types.int64)[0], args[KV_HEADS], args[SHARES]
        splits, row = args[SPLITS], piece % rows
        share, split = piece // rows // splits, piece // rows % splits
        count = kv_heads // shares
        heads = count * group
        token = pointer(args[TOKENS], types.int64)[row]
        first_query = advance(pointer(args[Q], item_q), token * args[Q_STRIDE] + share * heads * k_dim)
        q = numba.carray(first_query, (heads, k_dim))
        first_head = token * kv_heads * group + share * heads
        out = numba.carray(advance(pointer(args[OUT], item_q), first_head * v_dim), (heads, v_dim))
        keys, values = pointer(args[KEYS], item), pointer(args[VALUES], item)
        key_scales, value_scales = pointer(args[KEY_SCALES], types.float32), pointer(args[VALUE_SCALES], types.float32)
        tables = numba.carray(pointer(args[TABLES], types.int64), (rows, args[WIDTH]))
        firsts = pointer(args[FIRSTS], types.int64)
        table, first = tables[row], firsts[row]
        next_row = row + args[THREADS] if row + args[THREADS] < rows else row  # probably this thread's next one
        next_block = tables[next_row, firsts[next_row] // block_size]
        last = pointer(args[SEQ_LENS], types.int64)[row]
        floats = pointer(args[FLOATS], types.float32)
        scaling, softcap = floats[0], floats[1]

        query, total = np.zeros((heads, k_size), np.float32), np.zeros((heads, v_size), np.float32)
        weight, top = np.zeros(heads, np.float32), np.full(heads, LOWEST, np.float32)
        _load_queries(query, q, k_order, scaling, bf16_q)

        begin_column, end_column = first // block_size, (last + block_size - 1) // block_size
        number = end_column - begin_column
        columns = begin_column + number * (split + 1) // splits
        for column in range(begin_column + number * split // splits, columns):
            block = table[column] * kv_heads + share * count
            following = (table[column + 1] if column + 1 < columns else next_block) * kv_heads + share * count
            for head in range(count):
                prefetch(advance(keys, (following + head) * k_block), k_block)
                prefetch(advance(values, (following + head) * v_block), v_block)
                if bits == 8:
                    prefetch(advance(key_scales, (following + head) * block_size), block_size)
                    prefetch(advance(value_scales, (following + head) * block_size), block_size)
                for part in range(min(parts, (last - column * block_size + at_once - 1) // at_once)):
                    begin = column * block_size + part * at_once
                    token_at = (block + head) * block_size + part * at_once
                    attend_tokens(
                        address(query, head * group * k_size),
                        advance(keys, (block + head) * k_block + part * k_part),
                        advance(values, (block + head) * v_block + part * v_part),
                        (advance(key_scales, token_at), advance(value_scales, token_at)),
                        first - begin,
                        last - begin,
                        softcap,
                        address(top, head * group),
                        address(weight, head * group),
                        address(total, head * group * v_size),
                        shape,
                    )

        if splits > 1:
            size = heads * (v_size + 2)
            of_row = advance(pointer(args[PARTS], types.float32), (row * shares + share) * splits * size)
            parts_of_row = numba.carray(of_row, (splits, heads, v_size + 2))
            ended = advance(pointer(args[ENDED], types.int64), row * shares + share)
            _keep_part(total, weight, top, parts_of_row[split])
            if atomic_increment(ended) < splits - 1:
                return
            ended[0] = 0  # for the next call
            total[:], weight[:], top[:] = 0, 0, LOWEST
            for other in range(splits):
                _add_part(total, weight, top, parts_of_row[other])
        if args[NUM_SINKS]:
            add_sinks(total, weight, top, array_at(args[SINKS], types.float32, share * heads, heads))
        _write_out(out, total, weight, v_lanes, bf16_q)

    return kernel(attend)
