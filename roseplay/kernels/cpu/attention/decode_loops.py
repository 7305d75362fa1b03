"""The compiled loops over tokens to append, and over single queries and the blocks that they attend to.

A thread walks over a row's blocks once, with some of its KV heads, and all query heads of a group read a block while it
is in the first-level cache. Blocks lie anywhere, so the next one is asked for before it is needed: without that, and in
small pages, the time goes into waiting for memory to begin to answer.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from roseplay.kernels.cpu.attention.decode_vectors import LOWEST, attend_tokens, lane_order
from roseplay.kernels.cpu.simd import LANES, address, kernel, moved, pointer, prefetch

# What a kernel is told, by number: addresses, then sizes. The first one is its own.
(
    KERNEL, Q, OUT, KEYS, VALUES, FLOATS, SINKS, Q_STRIDE, KV_HEADS, SHARES, NUM_SINKS, THREADS,
    TOKENS, TABLES, SEQ_LENS, FIRSTS, ROWS, WIDTH,
) = range(18)  # fmt: skip


@cache
def append(narrow: bool) -> Any:
    """Tokens ``[tokens, heads, dim]``, ``stride`` numbers apart, into ``[blocks, heads, block_size, dim]``; numbers that are
    not finite become 0. ``narrow`` is bfloat16."""
    item = types.uint16 if narrow else types.uint32
    infinite = np.uint32(0x7F80 if narrow else 0x7F800000)  # an exponent of ones: infinity or NaN

    def append(given, piece):
        new_at, blocks_at, slots_at, tokens, pieces = given[1], given[2], given[3], given[4], given[5]
        stride, heads, block_size, dim = given[6], given[7], given[8], given[9]
        slots = numba.carray(pointer(slots_at, types.int64), tokens)
        for token in range(tokens * piece // pieces, tokens * (piece + 1) // pieces):
            block, offset = slots[token] // block_size, slots[token] % block_size
            for head in range(heads):
                new = numba.carray(moved(pointer(new_at, item), token * stride + head * dim), dim)
                kept = numba.carray(
                    moved(pointer(blocks_at, item), ((block * heads + head) * block_size + offset) * dim), dim
                )
                for d in range(dim):
                    kept[d] = 0 if new[d] & infinite == infinite else new[d]

    return kernel(append)


@numba.njit(inline="always")
def _take_queries(query, q, order, scaling, narrow):
    """``q [heads, dim]`` times ``scaling`` into the lanes of ``query``, in their order; those without a number stay 0."""
    bits = query.view(np.uint32)
    for head in range(len(query)):
        for lane in range(len(order)):
            d = order[lane]
            if d >= 0 and narrow:
                bits[head, lane] = np.uint32(q[head, d]) << np.uint32(16)
            elif d >= 0:
                query[head, lane] = q[head, d]
            query[head, lane] *= scaling


@numba.njit(inline="always")
def add_sinks(total, weight, top, sinks):
    """A sink weighs like a token, and adds nothing. Rows take the heads' ``sinks`` in turn."""
    for row in range(len(total)):
        sink = sinks[row % len(sinks)]
        highest = max(top[row], sink)
        rescale = np.float32(math.exp(top[row] - highest))
        weight[row] = weight[row] * rescale + np.float32(math.exp(sink - highest))
        for d in range(total.shape[1]):
            total[row, d] *= rescale


@numba.njit(inline="always")
def _give_out(out, total, weight, place, narrow):
    """``total`` over ``weight`` to ``out [heads, dim]``, each number from its lane."""
    sums = total.view(np.uint32)
    for head in range(len(out)):
        for d in range(len(place)):
            lane = place[d]
            total[head, lane] /= weight[head]
            if narrow:  # to the nearest, a tie to the even one
                wide = sums[head, lane]
                odd = (wide >> np.uint32(16)) & np.uint32(1)
                out[head, d] = (wide + np.uint32(0x7FFF) + odd) >> np.uint32(16)
            else:
                out[head, d] = total[head, lane]


@cache
def attend(narrow_q: bool, narrow: bool, group: int, k_dim: int, v_dim: int, block_size: int, capped: bool) -> Any:
    """The kernel for one shape of layer, with its ``address``: attends with one share of one row's heads.

    Args:
        narrow_q, narrow: q and out, keys and values are bfloat16 (as uint16), else float32.
        group: query heads of a KV head.
        capped: there is a softcap.
    """
    k_order, v_order = lane_order(k_dim, narrow), lane_order(v_dim, narrow)
    k_size, v_size = len(k_order), len(v_order)
    v_place = np.argsort(v_order, kind="stable")[v_size - v_dim :]  # of each number; lanes without one come first
    at_once = math.gcd(block_size, LANES)
    parts = block_size // at_once
    shape = f"{group},{k_dim},{v_dim},{at_once},{int(capped)}"
    k_block, v_block, k_part, v_part = (n * dim for n in (block_size, at_once) for dim in (k_dim, v_dim))
    item, item_q = (types.uint16 if small else types.float32 for small in (narrow, narrow_q))

    def attend(given, piece):
        rows, kv_heads, shares = given[ROWS], given[KV_HEADS], given[SHARES]
        share, row = piece // rows, piece % rows
        count = kv_heads // shares
        heads = count * group
        token = numba.carray(pointer(given[TOKENS], types.int64), rows)[row]
        q = numba.carray(
            moved(pointer(given[Q], item_q), token * given[Q_STRIDE] + share * heads * k_dim), (heads, k_dim)
        )
        first_head = token * kv_heads * group + share * heads
        out = numba.carray(moved(pointer(given[OUT], item_q), first_head * v_dim), (heads, v_dim))
        keys, values = pointer(given[KEYS], item), pointer(given[VALUES], item)
        tables = numba.carray(pointer(given[TABLES], types.int64), (rows, given[WIDTH]))
        firsts = numba.carray(pointer(given[FIRSTS], types.int64), rows)
        table, first = tables[row], firsts[row]
        next_row = row + given[THREADS] if row + given[THREADS] < rows else row  # likely this thread's next one
        next_block = tables[next_row, firsts[next_row] // block_size]
        last = numba.carray(pointer(given[SEQ_LENS], types.int64), rows)[row]
        floats = numba.carray(pointer(given[FLOATS], types.float32), 2)
        scaling, softcap = floats[0], floats[1]

        query, total = np.zeros((heads, k_size), np.float32), np.zeros((heads, v_size), np.float32)
        weight, top = np.zeros(heads, np.float32), np.full(heads, LOWEST, np.float32)
        _take_queries(query, q, k_order, scaling, narrow_q)

        columns = (last + block_size - 1) // block_size
        for column in range(first // block_size, columns):
            block = table[column] * kv_heads + share * count
            following = (table[column + 1] if column + 1 < columns else next_block) * kv_heads + share * count
            for head in range(count):
                prefetch(moved(keys, (following + head) * k_block), k_block)
                prefetch(moved(values, (following + head) * v_block), v_block)
                for part in range(parts):
                    begin = column * block_size + part * at_once
                    attend_tokens(
                        address(query, head * group * k_size),
                        moved(keys, (block + head) * k_block + part * k_part),
                        moved(values, (block + head) * v_block + part * v_part),
                        first - begin,
                        last - begin,
                        softcap,
                        address(top, head * group),
                        address(weight, head * group),
                        address(total, head * group * v_size),
                        shape,
                    )

        if given[NUM_SINKS]:
            sinks = numba.carray(pointer(given[SINKS], types.float32), given[NUM_SINKS])
            add_sinks(total, weight, top, sinks[share * heads : (share + 1) * heads])
        _give_out(out, total, weight, v_place, narrow_q)

    return kernel(attend)
