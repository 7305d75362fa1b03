"""Convolves packed rows, each with its last inputs from before, in one Triton launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from roseplay.kernels import state_functions
from roseplay.kernels.cuda.states.rows import chunk_of, chunks_of
from roseplay.kernels.state_functions import Convolution, check, packed_rows

_BLOCK_C = 64  # channels of a program


@triton.jit(do_not_specialize_on_alignment=["cu_seqlens", "seq_lens"])  # parts of one packed upload
def convolve_kernel(
    out, x, weight, bias, states, slots, chunks, cu_seqlens, seq_lens, x_stride, out_stride, channels,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, BLOCK_C: tl.constexpr,
    BIAS: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """Convolve a chunk of a row; the program of its first chunk also stores the row's last inputs.

    ``x`` and ``out`` are [tokens, channels]; ``states`` [slots, channels, INPUTS]; ``weight`` [channels, WIDTH]. Only the
    first chunk of a row reads its state, because it is longer than the kernel is wide. Grid: chunks, blocks of channels.
    """
    row, number = tl.load(chunks + 2 * tl.program_id(0)), tl.load(chunks + 2 * tl.program_id(0) + 1)
    begin = tl.load(cu_seqlens + row)
    tokens = tl.load(cu_seqlens + row + 1) - begin
    goes_on = tl.load(seq_lens + row) > tokens
    channel = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)
    here = channel < channels
    state = states + (tl.load(slots + row) * channels + channel) * INPUTS
    position = number * CHUNK + tl.arange(0, CHUNK)  # in the row
    y = tl.zeros((CHUNK, BLOCK_C), tl.float32)
    if BIAS:
        y += tl.load(bias + channel, mask=here, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(WIDTH):
        source = position + tap - (WIDTH - 1)
        new = (source >= 0) & (source < tokens)
        seen = tl.load(
            x + (begin + source)[:, None] * x_stride + channel[None, :], mask=new[:, None] & here[None, :], other=0.0
        ).to(tl.float32)
        old = (source < 0) & goes_on
        kept = state[None, :] + (INPUTS + source)[:, None]
        seen += tl.load(kept, mask=old[:, None] & here[None, :], other=0.0).to(tl.float32)
        y += seen * tl.load(weight + channel * WIDTH + tap, mask=here, other=0.0).to(tl.float32)[None, :]
    if SILU:
        y = y.to(out.dtype.element_ty).to(tl.float32)
        y = y * tl.sigmoid(y)
    places = out + (begin + position)[:, None] * out_stride + channel[None, :]
    tl.store(places, y.to(out.dtype.element_ty), mask=(position < tokens)[:, None] & here[None, :])
    if number == 0:
        tl.debug_barrier()  # no thread stores before all have read the state above
        for i in tl.static_range(INPUTS):
            last = tokens + i - INPUTS
            newest = tl.load(x + (begin + last) * x_stride + channel, mask=here & (last >= 0), other=0.0)
            shifted = tl.load(state + tokens + i, mask=here & (last < 0) & goes_on, other=0.0)
            tl.debug_barrier()
            newest = tl.where(last >= 0, newest.to(tl.float32), shifted.to(tl.float32))
            tl.store(state + i, newest.to(states.dtype.element_ty), mask=here)


@state_functions.causal_conv1d_fn
def causal_conv1d_fn(rows: Convolution) -> torch.Tensor:
    """Convolve the inputs of each row of a packed batch with those before them, and store its last inputs as its state."""
    x, bias, states, chunk = rows.x, rows.bias, rows.states, chunk_of(rows.x.dtype)
    (tokens, channels), inputs = x.shape, states.tensor.shape[-1]
    check(inputs <= chunk, f"{inputs} inputs before a token")
    chunks, packed = chunks_of(states, chunk), packed_rows(states)
    out = torch.empty((tokens, channels), dtype=x.dtype, device=x.device)
    with torch.cuda.device_of(x):
        convolve_kernel[len(chunks), triton.cdiv(channels, _BLOCK_C)](
            out, x, rows.weight, out if bias is None else bias, states.tensor, states.slots, chunks, packed.cu_seqlens,
            packed.seq_lens, x.stride(0), out.stride(0), channels,
            INPUTS=inputs, WIDTH=rows.weight.shape[-1], CHUNK=chunk, BLOCK_C=_BLOCK_C,
            BIAS=bias is not None, SILU=rows.silu, num_warps=4,
        )  # fmt: skip
    return out
