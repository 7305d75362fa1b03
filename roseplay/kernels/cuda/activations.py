"""Gated activations in one Triton launch: SiLU or GELU of the gate, times up."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from roseplay.kernels.gated_mlp import Activate

_BLOCK = 1024  # numbers that a program computes


@triton.jit
def gate_kernel(out, both, row_stride, DIM: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr):
    """Write ``act(gate) * up`` [rows, dim] of rows that are the gate, then up. Rounds the activation, as torch does. Grid:
    rows, blocks of a row."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = dims < DIM
    gate = tl.load(both + row * row_stride + dims, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(both + row * row_stride + DIM + dims, mask=mask, other=0.0).to(tl.float32)
    exponent = gate
    if GELU:  # 1 + tanh(y) is 2 / (1 + exp(-2y))
        exponent = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    active = (gate / (1.0 + tl.exp(-exponent))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * DIM + dims, (active * up).to(out.dtype.element_ty), mask=mask)


def _times(product: torch.Tensor, gelu: bool) -> torch.Tensor:
    """Returns ``[..., dim]`` for ``[..., 2 * dim]``, contiguous."""
    dim = product.shape[-1] // 2
    out = product.new_empty((*product.shape[:-1], dim))
    block = min(_BLOCK, max(16, triton.next_power_of_2(dim)))
    with torch.cuda.device_of(product):
        gate_kernel[out.numel() // dim, triton.cdiv(dim, block)](
            out, product, 2 * dim, DIM=dim, BLOCK=block, GELU=gelu, num_warps=4
        )
    return out


ACTIVATIONS: tuple[Activate, ...] = (partial(_times, gelu=False), partial(_times, gelu=True))
