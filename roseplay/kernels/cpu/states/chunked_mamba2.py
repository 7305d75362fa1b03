"""Computes prompts of a Mamba 2 layer (Dao and Gu 2024, arXiv:2405.21060) in chunks of 32 tokens.

The state before a chunk, ``[size, dim]``, gives every token its product with C. What the tokens of the chunk add to each
other's results follows from the products of their C and B, as in attention.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.parallel import share_out
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
from roseplay.kernels.cpu.states.layout import check, check_unpacked, head_rows, item_of, packed_rows
from roseplay.kernels.cpu.states.selective import to_steps
from roseplay.kernels.cpu.tiles import STRIP
from roseplay.model.states import SlotStates


def chunk_scan(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    initial_states: SlotStates,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    z: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``state * exp(dt A) + dt x B^T``, times C, plus ``D x``, for the rows of a packed batch; updates the states in place.

    Args:
        hidden_states: x, ``[1, tokens, heads, dim]``, float32 or bfloat16, as are B, C, D, dt and ``dt_bias``.
        dt: ``[1, tokens, heads]``; A: float32 ``[heads]``; D and ``dt_bias``: ``[heads]``.
        B, C: ``[1, tokens, groups, size]``; each is shared by the heads of a group.
        chunk_size: not used, since it does not change the results.
        initial_states: ``[slots, heads, dim, size]``, float32 or bfloat16, with the rows.
        dt_softplus, return_final_states: must be set.
        z: must be None.

    Returns float32 ``[1, tokens, heads, dim]``, and the states of all slots. Raises ``ValueError`` for anything else.
    """
    batch, _, heads, dim = hidden_states.shape
    groups, size = B.shape[2:]
    stored = initial_states.tensor
    check_products()
    check(batch == 1 and dt_softplus and return_final_states and z is None, "several batches, no softplus, or a gate")
    check(heads % groups == 0 and stored.shape[1:] == (heads, dim, size), f"states of {stored.shape}")
    check_unpacked(kwargs)
    inputs = (hidden_states, dt, B, C)
    check(len({x.dtype for x in (*inputs, D, dt_bias)}) == 1 and A.dtype == torch.float32, "inputs of two dtypes")
    x, steps, b, c = (head_rows(tensor[0]) for tensor in inputs)
    A, D, dt_bias = A.contiguous(), D.contiguous(), dt_bias.contiguous()
    limits = np.array(dt_limit, np.float32)
    out = torch.empty(hidden_states.shape)
    rows, places = packed_rows(initial_states)
    compute = _prefill(item_of(x), item_of(stored), heads // groups, dim, size)
    arguments = [y for tensor in (x, steps, b, c) for y in (tensor.data_ptr(), tensor.stride(0))]
    arguments += [tensor.data_ptr() for tensor in (A, D, dt_bias)]
    arguments += [limits.ctypes.data, stored.data_ptr(), *places, out.data_ptr(), heads]
    share_out(compute, arguments, rows * heads, (initial_states, limits))
    return out, stored


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
        x, values, results = (
            np.empty(dim, np.float32),
            np.zeros(parts * VALUES, np.float32),
            np.empty(parts * VALUES, np.float32),
        )
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
                address(c, 0),
                size,
                address(keys, 0),
                address(zeros, 0),
                0,
                size,
                address(products, 0),
                CHUNK,
                count,
                False,
            )
            for i in range(count):
                decay_products(products, i, sums, i, one, i + 1, between)
            for part in range(parts):
                of_part = results[part * VALUES : (part + 1) * VALUES]
                multiply(
                    address(c, 0), size, address(state, part * part_len), address(zeros, 0), 0, size,
                    address(of_part, 0), STRIP, count, False,
                )  # fmt: skip
                for i in range(count):
                    for d in range(i * STRIP, (i + 1) * STRIP):
                        of_part[d] *= decays[i]
                multiply(
                    address(products, 0), CHUNK, address(values, part * VALUES), address(of_part, 0), STRIP, count,
                    address(of_part, 0), STRIP, count, True,
                )  # fmt: skip
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
