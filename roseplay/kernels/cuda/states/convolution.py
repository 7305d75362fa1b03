"""Convolves packed rows, each with its last inputs from before, in one Triton launch."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from roseplay.kernels.cuda.states.rows import check, chunk_of, chunks_of
from roseplay.model.states import PackedInputs

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


def causal_conv1d_fn(
    hidden_states: PackedInputs,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Convolve the inputs of each row of a packed batch with those before them, and store its last inputs as its state.

    Args:
        hidden_states: ``[1, channels, tokens]``, and states ``[slots, channels, inputs]``.
        weight: ``[channels, width]``; ``bias``: ``[channels]``.
        activation: ``silu``, ``swish`` or None.

    Returns ``[1, channels, tokens]``. Raises ``ValueError`` for anything else.
    """
    check(isinstance(hidden_states, PackedInputs), "inputs without states")
    x, conv_state = hidden_states.tensor, hidden_states.states
    states, (batch, channels, tokens), width = conv_state.tensor, x.shape, weight.shape[-1]
    inputs, chunk = states.shape[-1], chunk_of(x.dtype)
    check(batch == 1 and states.shape[1] == channels, f"inputs of {x.shape}")
    check(width - 1 <= inputs <= chunk and states.is_contiguous(), f"{inputs} inputs before a token")
    check(activation in (None, "silu", "swish"), f"the activation {activation}")
    check(weight.is_contiguous() and (bias is None or bias.is_contiguous()), "scattered weights")
    chunks, rows = chunks_of(conv_state, chunk), conv_state.rows
    assert rows is not None
    by_token = x[0].T if x.stride(1) == 1 else x[0].T.contiguous()
    out = torch.empty((tokens, channels), dtype=x.dtype, device=x.device)
    with torch.cuda.device_of(x):
        convolve_kernel[len(chunks), triton.cdiv(channels, _BLOCK_C)](
            out, by_token, weight, out if bias is None else bias, states, conv_state.slots, chunks, rows.cu_seqlens,
            rows.seq_lens, by_token.stride(0), out.stride(0), channels,
            INPUTS=inputs, WIDTH=width, CHUNK=chunk, BLOCK_C=_BLOCK_C,
            BIAS=bias is not None, SILU=activation is not None, num_warps=4,
        )  # fmt: skip
    return out.T[None]
