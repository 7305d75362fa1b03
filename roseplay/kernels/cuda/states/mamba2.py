"""Computes prompts of a Mamba 2 layer (Dao and Gu 2024, arXiv:2405.21060) in one Triton launch."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from roseplay.kernels.cuda.states.rows import check, check_unpacked, chunk_of, dense, launch_options, pad, precision
from roseplay.model.states import SlotStates

_MOST_SIZE = 256


@triton.jit
def _steps(dt, token, inside, stride, bias, least, most):
    """Returns the steps of a chunk's tokens, float32, rounded where torch rounds them."""
    x = tl.load(dt + token * stride, mask=inside, other=0.0)
    x = (x.to(tl.float32) + bias).to(x.dtype).to(tl.float32)
    softplus = tl.where(x <= 20.0, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))), x)
    softplus = softplus.to(dt.dtype.element_ty).to(tl.float32)
    return tl.where(inside, tl.minimum(tl.maximum(softplus, least), most), 0.0)


@triton.jit(do_not_specialize_on_alignment=["cu_seqlens", "seq_lens"])
def scan_kernel(
    out, x, dt, a, b, c, d, dt_bias, states, slots, cu_seqlens, seq_lens, least, most,
    x_stride, dt_stride, b_stride, c_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, PAD: tl.constexpr,
    BLOCK_P: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Go through the chunks of a row, for a part of a head. Grid: rows, heads, parts.

    ``out`` is float32 [tokens, HEADS, DIM], ``states`` [slots, HEADS, DIM, SIZE].
    """
    row, head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(cu_seqlens + row), tl.load(cu_seqlens + row + 1)
    if begin == end:
        return
    i, sizes, dims = tl.arange(0, CHUNK), tl.arange(0, PAD), tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P)
    state_mask = (sizes < SIZE)[:, None] & (dims < DIM)[None, :]
    places = states + (tl.load(slots + row) * HEADS + head) * DIM * SIZE + dims[None, :] * SIZE + sizes[:, None]
    goes_on = tl.load(seq_lens + row) > end - begin
    state = tl.load(places, mask=state_mask & goes_on, other=0.0).to(tl.float32)
    rate, skip = tl.load(a + head), tl.load(d + head).to(tl.float32)
    bias = tl.load(dt_bias + head).to(tl.float32)
    for first in range(begin, end, CHUNK):
        token = first + i
        inside = token < end
        steps = _steps(dt + head, token, inside, dt_stride, bias, least, most)
        sums = tl.cumsum(steps * rate, 0)
        total = tl.sum(steps * rate, 0)
        mask = inside[:, None] & (sizes < SIZE)[None, :]
        of_group = head // GROUP * SIZE + sizes[None, :]
        keys = tl.load(b + token[:, None] * b_stride + of_group, mask=mask, other=0.0).to(tl.float32)
        queries = tl.load(c + token[:, None] * c_stride + of_group, mask=mask, other=0.0).to(tl.float32)
        mask = inside[:, None] & (dims < DIM)[None, :]
        values = tl.load(x + token[:, None] * x_stride + head * DIM + dims[None, :], mask=mask, other=0.0).to(
            tl.float32
        )
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
        scores *= tl.exp(tl.minimum(sums[:, None] - sums[None, :], 0.0))
        scores = tl.where(i[:, None] >= i[None, :], scores, 0.0)
        added = values * steps[:, None]
        result = tl.dot(queries * tl.exp(sums)[:, None], state, input_precision=PRECISION)
        result += tl.dot(scores, added, input_precision=PRECISION) + values * skip
        tl.store(out + (token * HEADS + head)[:, None] * DIM + dims[None, :], result, mask=mask)
        keys *= tl.exp(total - sums)[:, None]
        state = state * tl.exp(total) + tl.dot(tl.trans(keys), added, input_precision=PRECISION)
    tl.store(places, state.to(states.dtype.element_ty), mask=state_mask)


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
        hidden_states: x, ``[1, tokens, heads, dim]``; ``dt``: ``[1, tokens, heads]``; A: float32 ``[heads]``; D and
            ``dt_bias``: ``[heads]``.
        B, C: ``[1, tokens, groups, size]``, a size of at most 256; each is shared by the heads of a group.
        chunk_size: not used, since it does not change the results.
        initial_states: ``[slots, heads, dim, size]``, with the rows.
        dt_softplus, return_final_states: must be set.
        z: must be None.

    Returns float32 ``[1, tokens, heads, dim]``, and the states of all slots. Raises ``ValueError`` for anything else.
    """
    batch, _, heads, dim = hidden_states.shape
    groups, size = B.shape[2:]
    states, rows = initial_states.tensor, initial_states.rows
    check(batch == 1 and dt_softplus and return_final_states and z is None, "several batches, no softplus, or a gate")
    check(heads % groups == 0 and size <= _MOST_SIZE, f"{heads} heads in {groups} groups, states of {size}")
    check(states.shape[1:] == (heads, dim, size) and states.is_contiguous(), f"states of {states.shape}")
    check(A.dtype == torch.float32 and dt.dtype == dt_bias.dtype, "steps of two dtypes")
    check(rows is not None, "rows whose tokens are not known")
    check_unpacked(kwargs)
    assert rows is not None
    x, b, c = (dense(tensor[0]) for tensor in (hidden_states, B, C))
    steps = dt[0] if dt.stride(2) == 1 else dt[0].contiguous()
    out = torch.empty(hidden_states.shape, dtype=torch.float32, device=x.device)
    chunk = chunk_of(x.dtype)
    block_p, padded = min(chunk, pad(dim)), pad(size)
    with torch.cuda.device_of(x):
        scan_kernel[len(rows.seq_lens), heads, triton.cdiv(dim, block_p)](
            out, x, steps, A.contiguous(), b, c, D.contiguous(), dt_bias.contiguous(), states, initial_states.slots,
            rows.cu_seqlens, rows.seq_lens, float(dt_limit[0]), float(dt_limit[1]),
            x.stride(0), steps.stride(0), b.stride(0), c.stride(0),
            HEADS=heads, GROUP=heads // groups, DIM=dim, SIZE=size, PAD=padded, BLOCK_P=block_p,
            CHUNK=chunk, PRECISION=precision(x.dtype), **launch_options(),
        )  # fmt: skip
    return out, states
