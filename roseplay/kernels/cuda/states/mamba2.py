"""Computes prompts of a Mamba 2 layer (Dao and Gu 2024, arXiv:2405.21060) in one Triton launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from roseplay.kernels.cuda.dots import pad, precision
from roseplay.kernels.cuda.states.rows import chunk_of, dense, launch_options
from roseplay.kernels.state_functions import ChunkScan, check, mamba2_chunk_scan, packed_rows

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


@mamba2_chunk_scan
def chunk_scan(scan: ChunkScan) -> torch.Tensor:
    """Compute the rows of a packed batch; states have a size of at most 256."""
    heads, group, dim, size = scan.sizes
    check(size <= _MOST_SIZE, f"states of {size}")
    states, rows = scan.states, packed_rows(scan.states)
    x, b, c = (dense(tensor) for tensor in (scan.x, scan.B, scan.C))
    steps = scan.dt if scan.dt.stride(1) == 1 else scan.dt.contiguous()
    out = torch.empty((1, *x.shape), dtype=torch.float32, device=x.device)
    chunk = chunk_of(x.dtype)
    block_p = min(chunk, pad(dim))
    with torch.cuda.device_of(x):
        scan_kernel[len(rows.seq_lens), heads, triton.cdiv(dim, block_p)](
            out, x, steps, scan.A, b, c, scan.D, scan.dt_bias, states.tensor, states.slots, rows.cu_seqlens, rows.seq_lens,
            *scan.limits, x.stride(0), steps.stride(0), b.stride(0), c.stride(0),
            HEADS=heads, GROUP=group, DIM=dim, SIZE=size, PAD=pad(size), BLOCK_P=block_p,
            CHUNK=chunk, PRECISION=precision(x.dtype), **launch_options(),
        )  # fmt: skip
    return out
