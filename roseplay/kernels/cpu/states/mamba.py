"""Computes the next token of a Mamba layer (Gu and Dao 2023, arXiv:2312.00752), in which each channel has its own step,
in one pass over the state."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.activations import exp
from roseplay.kernels.cpu.parallel import Work
from roseplay.kernels.cpu.rows import read_row, round_row, write_row
from roseplay.kernels.cpu.simd import LANES, array_at, kernel
from roseplay.kernels.cpu.states.layout import item_of
from roseplay.kernels.cpu.states.selective import add_skipped, multiply_by_gate, to_steps
from roseplay.kernels.state_functions import check, check_unpacked
from roseplay.model.states import SlotStates

_CHUNK = 128  # channels of a piece


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
    *,
    z: torch.Tensor,
    **kwargs: Any,
) -> torch.Tensor:
    """``state * exp(dt A) + dt x B``, times C, plus ``D x``, for one token of each row; updates the state in place.

    Args:
        state: ``[slots, channels, size]``, float32 or bfloat16.
        hidden_states: x, ``[rows, channels]``, float32 or bfloat16, as are ``dt`` ``[rows, channels]``, B and C
            ``[rows, size]`` and D ``[channels]``.
        A: float32 ``[channels, size]``, negative; ``dt_bias``: ``[channels]``, rounded to the dtype of x.
        dt_softplus: must be set.
        z: ``[rows, channels]``, whose SiLU the result is multiplied by.

    Returns ``[rows, channels]``. Raises ``ValueError`` for anything else.
    """
    rows, channels = hidden_states.shape
    size, stored = B.shape[-1], state.tensor
    check(dt_softplus, "steps without softplus")
    check_unpacked(kwargs)
    check(stored.shape[1:] == (channels, size), f"states of {stored.shape}")
    check(A.dtype == torch.float32 and A.is_contiguous() and A.shape == (channels, size), f"decays of {A.shape}")
    bias = dt_bias.to(dt.dtype)
    inputs = [x if x.stride(-1) == 1 else x.contiguous() for x in (hidden_states, dt, B, C, z)]
    check(all(x.dtype == hidden_states.dtype for x in (*inputs, D)), "inputs of two dtypes")
    out = torch.empty((rows, channels), dtype=hidden_states.dtype)
    chunks = -(-channels // _CHUNK)
    compute = _update(item_of(out), item_of(stored), size)
    arguments = [y for x in inputs for y in (x.data_ptr(), x.stride(0))]
    arguments += [x.data_ptr() for x in (A, D, bias, stored, state.slots, out)]
    Work(compute, [*arguments, channels, chunks], rows * chunks, (state,)).run()
    return out


@cache
def _update(item: Any, state_item: Any, size: int) -> Any:
    bf16, state_bf16 = item is types.uint16, state_item is types.uint16
    lanes = (size + LANES - 1) // LANES * LANES

    def selective_state_update(args, piece):
        channels, chunks = args[17], args[18]
        row, chunk = piece // chunks, piece % chunks
        begin = channels * chunk // chunks
        count = channels * (chunk + 1) // chunks - begin
        slot = array_at(args[15], types.int64, row, 1)[0]
        x, step, skip = np.empty(count, np.float32), np.empty(count, np.float32), np.empty(count, np.float32)
        b, c = np.empty(size, np.float32), np.empty(size, np.float32)
        state, decay = np.empty(size, np.float32), np.zeros(lanes, np.float32)
        gate = np.zeros((count + LANES - 1) // LANES * LANES, np.float32)
        read_row(array_at(args[1], item, row * args[2] + begin, count), x, bf16)
        read_row(array_at(args[3], item, row * args[4] + begin, count), step, bf16)
        read_row(array_at(args[5], item, row * args[6], size), b, bf16)
        read_row(array_at(args[7], item, row * args[8], size), c, bf16)
        read_row(array_at(args[9], item, row * args[10] + begin, count), gate[:count], bf16)
        read_row(array_at(args[13], item, begin, count), skip, bf16)
        to_steps(step, skip, bf16)
        read_row(array_at(args[12], item, begin, count), skip, bf16)
        for d in range(count):
            rate = array_at(args[11], types.float32, (begin + d) * size, size)
            for i in range(size):
                decay[i] = rate[i] * step[d]
            decay[size:] = 0
            exp(decay)
            stored = array_at(args[14], state_item, (slot * channels + begin + d) * size, size)
            read_row(stored, state, state_bf16)
            for i in range(size):
                state[i] = state[i] * decay[i] + step[d] * b[i] * x[d]
            write_row(state, stored, state_bf16)
            if bf16:
                round_row(state)
            total = np.float32(0)
            for i in range(size):
                total += state[i] * c[i]
            step[d] = total
        for d in range(count):
            x[d] *= skip[d]
        add_skipped(step, x, bf16)
        multiply_by_gate(step, gate, bf16)
        write_row(step, array_at(args[16], item, row * channels + begin, count), bf16)

    return kernel(selective_state_update)
