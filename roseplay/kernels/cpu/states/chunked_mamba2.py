"""Computes prompts of a Mamba 2 layer (Dao and Gu 2024, arXiv:2405.21060) in chunks of 32 tokens.

The state before a chunk, ``[size, dim]``, gives every token its product with C. What the tokens of the chunk add to each
other's results follows from the products of their C and B, as in attention.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.parallel import Work
from roseplay.kernels.cpu.rows import read_row, write_row
from roseplay.kernels.cpu.simd import address, array_at, kernel
from roseplay.kernels.cpu.states.chunks import (
    CHUNK,
    VALUES,
    add_to_state,
    check_products,
    decay_products,
    from_strips,
    multiply,
    read_state,
    to_decays,
    to_strips,
    write_state,
)
from roseplay.kernels.cpu.states.layout import addresses, head_rows, item_of
from roseplay.kernels.cpu.states.selective import to_steps
from roseplay.kernels.cpu.tiles import STRIP
from roseplay.kernels.state_functions import ChunkScan, check, mamba2_chunk_scan


@mamba2_chunk_scan
def chunk_scan(scan: ChunkScan) -> torch.Tensor:
    """Compute the rows of a packed batch; all inputs but A are float32 or bfloat16."""
    check_products()
    inputs = (scan.x, scan.dt, scan.B, scan.C)
    check(len({x.dtype for x in (*inputs, scan.D, scan.dt_bias)}) == 1, "inputs of two dtypes")
    x, steps, b, c = (head_rows(tensor) for tensor in inputs)
    stored, limits = scan.states.tensor, np.array(scan.limits, np.float32)
    heads, group, dim, size = scan.sizes
    out = torch.empty((1, *scan.x.shape))
    rows, places = addresses(scan.states)
    compute = _prefill(item_of(x), item_of(stored), group, dim, size)
    arguments = [y for tensor in (x, steps, b, c) for y in (tensor.data_ptr(), tensor.stride(0))]
    arguments += [tensor.data_ptr() for tensor in (scan.A, scan.D, scan.dt_bias)]
    arguments += [limits.ctypes.data, stored.data_ptr(), *places, out.data_ptr(), heads]
    Work(compute, arguments, rows * heads, (scan, limits)).run()
    return out


@numba.njit(inline="always")
def _compute_strip(c, state, products, decays, values, results, zeros, count, size):
    """Write a strip of the tokens' results, of the strips of the state before the chunk and of the values.

    Args:
        c: ``[count, size]``; ``products``: those of ``c`` with the keys, decayed.
    """
    multiply(
        address(c, 0), size, address(state, 0), address(zeros, 0), 0, size, address(results, 0), STRIP, count, False,
    )  # fmt: skip
    for i in range(count):
        for d in range(i * STRIP, (i + 1) * STRIP):
            results[d] *= decays[i]
    multiply(
        address(products, 0), CHUNK, address(values, 0), address(results, 0), STRIP, count,
        address(results, 0), STRIP, count, True,
    )  # fmt: skip


@cache
def _prefill(item: Any, state_item: Any, group: int, dim: int, size: int) -> Any:
    bf16, state_bf16, one = item is types.uint16, state_item is types.uint16, np.float32(1)
    parts, part_len = -(-dim // STRIP), size * STRIP

    def chunk_scan(args, piece):
        heads = args[18]
        row, head = piece // heads, piece % heads
        slot, ends = array_at(args[14], types.int64, row, 1)[0], array_at(args[15], types.int64, row, 2)
        begin, end = ends[0], ends[1]
        stored = array_at(args[13], state_item, (slot * heads + head) * dim * size, dim * size)
        state, kept = np.zeros(parts * part_len, np.float32), np.empty(dim * size, np.float32)
        if array_at(args[16], types.int64, row, 1)[0] > end - begin:
            read_row(stored, kept, state_bf16)
            read_state(kept, state, size, dim, True)
        rate, limits = array_at(args[9], types.float32, head, 1)[0], array_at(args[12], types.float32, 0, 2)
        skip, bias = np.empty(1, np.float32), np.empty(1, np.float32)
        read_row(array_at(args[10], item, head, 1), skip, bf16)
        b, c, keys = np.empty(size, np.float32), np.empty(CHUNK * size, np.float32), np.zeros(size * CHUNK, np.float32)
        products, zeros = np.empty(CHUNK * CHUNK, np.float32), np.zeros(STRIP, np.float32)
        x, values = np.empty(dim, np.float32), np.zeros(parts * VALUES, np.float32)
        results = np.empty(parts * VALUES, np.float32)
        sums, decays = np.zeros(CHUNK, np.float32), np.zeros(CHUNK, np.float32)
        between, step = np.zeros(CHUNK, np.float32), np.empty(1, np.float32)
        for first in range(begin, end, CHUNK):
            count = min(CHUNK, end - first)
            for i in range(count):
                token, of_group = first + i, head // group * size
                read_row(array_at(args[7], item, token * args[8] + of_group, size), c[i * size : (i + 1) * size], bf16)
                read_row(array_at(args[5], item, token * args[6] + of_group, size), b, bf16)
                for d in range(size):
                    keys[d * CHUNK + i] = b[d]
                read_row(array_at(args[11], item, head, 1), bias, bf16)
                read_row(array_at(args[3], item, token * args[4] + head, 1), step, bf16)
                to_steps(step, bias, bf16)
                step[0] = min(max(step[0], limits[0]), limits[1])
                sums[i] = step[0] * rate + (sums[i - 1] if i else np.float32(0))
                read_row(array_at(args[1], item, token * args[2] + head * dim, dim), x, bf16)
                for d in range(dim):
                    x[d] *= step[0]
                to_strips(x, values, i)
            to_decays(sums, count, decays)
            multiply(
                address(c, 0), size, address(keys, 0), address(zeros, 0), 0, size, address(products, 0), CHUNK, count, False,
            )  # fmt: skip
            for i in range(count):
                decay_products(products, i, sums, i, one, i + 1, between)
            for part in range(parts):
                strip = slice(part * VALUES, (part + 1) * VALUES)
                _compute_strip(
                    c, state[part * part_len :], products, decays, values[strip], results[strip], zeros, count, size
                )
            add_to_state(state, keys, values, sums, count, size, parts, between)
            for i in range(count):
                read_row(array_at(args[1], item, (first + i) * args[2] + head * dim, dim), x, bf16)
                out = array_at(args[17], types.float32, ((first + i) * heads + head) * dim, dim)
                from_strips(results, i, out)
                for d in range(dim):
                    out[d] += x[d] * skip[0]
        if end > begin:
            write_state(state, kept, size, dim, True)
            write_row(kept, stored, state_bf16)

    return kernel(chunk_scan)
