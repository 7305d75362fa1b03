"""Computes the next token of a Mamba 2 layer (Dao and Gu 2024, arXiv:2405.21060), in which each head has one step, in
one pass over the state."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.parallel import Work
from roseplay.kernels.cpu.rows import read_row, round_row, write_row
from roseplay.kernels.cpu.simd import LANES, array_at, kernel
from roseplay.kernels.cpu.states.layout import head_rows, item_of
from roseplay.kernels.cpu.states.selective import add_skipped, multiply_by_gate, to_steps
from roseplay.kernels.state_functions import check, check_unpacked
from roseplay.model.states import SlotStates


def selective_state_update(
    state: SlotStates,
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    dt_softplus: bool = False,
    z: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """``state * exp(dt A) + dt x B^T``, times C, plus ``D x``, for one token of each row; updates the state in place.

    Args:
        state: ``[slots, heads, dim, size]``, float32 or bfloat16.
        hidden_states: x, ``[rows, heads, dim]``, float32 or bfloat16, as are B, C, D and both dt.
        dt: ``[rows, heads, dim]``, the same for all of a head, as is ``dt_bias`` ``[heads, dim]``, D ``[heads, dim]`` and
            A, float32 ``[heads, dim, size]``.
        B, C: ``[rows, groups, size]``; each is shared by the heads of a group.
        dt_softplus: must be set.
        z: ``[rows, heads, dim]``, whose SiLU the result is multiplied by, or None.

    Returns ``[rows, heads, dim]``. Raises ``ValueError`` for anything else.
    """
    rows, heads, dim = hidden_states.shape
    groups, size = B.shape[1:]
    stored = state.tensor
    check(dt_softplus, "steps without softplus")
    check(heads % groups == 0, f"{heads} heads in {groups} groups")
    check_unpacked(kwargs)
    check(stored.shape[1:] == (heads, dim, size), f"states of {stored.shape}")
    shared = ((dt, (2,)), (dt_bias, (1,)), (D, (1,)), (A, (1, 2)))
    check(all(tensor.stride(i) == 0 for tensor, axes in shared for i in axes), "numbers of their own in a head")
    check(A.dtype == torch.float32 and B.dtype == C.dtype == hidden_states.dtype, "inputs of two dtypes")
    steps, biases, skips, decays = dt[:, :, 0], dt_bias[:, 0], D[:, 0], A[:, 0, 0]
    check(steps.stride(1) == biases.stride(0) == skips.stride(0) == decays.stride(0) == 1, "scattered heads")
    x, b, c, gate = (head_rows(tensor) for tensor in (hidden_states, B, C, hidden_states if z is None else z))
    check(steps.dtype == biases.dtype == skips.dtype == x.dtype == gate.dtype, "inputs of two dtypes")
    out = torch.empty((rows, heads, dim), dtype=x.dtype)
    compute = _update(item_of(x), item_of(stored), heads // groups, dim, size, z is not None)
    arguments = [y for tensor in (x, steps, b, c, gate) for y in (tensor.data_ptr(), tensor.stride(0))]
    arguments += [tensor.data_ptr() for tensor in (decays, skips, biases, stored, state.slots, out)]
    Work(compute, [*arguments, heads], rows * heads, (state,)).run()
    return out


@cache
def _update(item: Any, state_item: Any, group: int, dim: int, size: int, gated: bool) -> Any:
    bf16, state_bf16 = item is types.uint16, state_item is types.uint16

    def selective_state_update(args, piece):
        heads = args[17]
        row, head = piece // heads, piece % heads
        slot = array_at(args[15], types.int64, row, 1)[0]
        x, out = np.empty(dim, np.float32), np.empty(dim, np.float32)
        step, bias, skip = np.empty(1, np.float32), np.empty(1, np.float32), np.empty(1, np.float32)
        b, c = np.empty(size, np.float32), np.empty(size, np.float32)
        state, added = np.empty(size, np.float32), np.empty(size, np.float32)
        read_row(array_at(args[1], item, row * args[2] + head * dim, dim), x, bf16)
        read_row(array_at(args[13], item, head, 1), bias, bf16)
        read_row(array_at(args[3], item, row * args[4] + head, 1), step, bf16)
        read_row(array_at(args[12], item, head, 1), skip, bf16)
        read_row(array_at(args[5], item, row * args[6] + head // group * size, size), b, bf16)
        read_row(array_at(args[7], item, row * args[8] + head // group * size, size), c, bf16)
        to_steps(step, bias, bf16)
        decay = np.float32(math.exp(step[0] * array_at(args[11], types.float32, head, 1)[0]))
        for i in range(size):
            b[i] *= step[0]
        if bf16:
            round_row(b)
        for j in range(dim):
            stored = array_at(args[14], state_item, ((slot * heads + head) * dim + j) * size, size)
            read_row(stored, state, state_bf16)
            for i in range(size):
                added[i] = b[i] * x[j]
            if bf16:
                round_row(added)
            for i in range(size):
                state[i] = state[i] * decay + added[i]
            write_row(state, stored, state_bf16)
            if bf16:
                round_row(state)
            total = np.float32(0)
            for i in range(size):
                total += state[i] * c[i]
            out[j] = total
        for j in range(dim):
            x[j] *= skip[0]
        add_skipped(out, x, bf16)
        if gated:
            gate = np.zeros((dim + LANES - 1) // LANES * LANES, np.float32)
            read_row(array_at(args[9], item, row * args[10] + head * dim, dim), gate[:dim], bf16)
            multiply_by_gate(out, gate, bf16)
        write_row(out, array_at(args[16], item, (row * heads + head) * dim, dim), bf16)

    return kernel(selective_state_update)
