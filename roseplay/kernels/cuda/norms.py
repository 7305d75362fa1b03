"""RMS norms in one Triton launch, for those that torch has no kernel for: Gemma's, which multiply by 1 + weight."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_LARGEST = 2**15  # numbers of a row, which a program holds


@triton.jit
def rms_norm_kernel(
    out, x, weight, eps, x_outer_stride, x_row_stride, out_outer_stride, out_row_stride,
    DIM: tl.constexpr, PAD: tl.constexpr, PLUS_ONE: tl.constexpr,
):  # fmt: skip
    """Normalise one row, in float32. Grid: rows, outer."""
    row, outer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, PAD)
    mask = dims < DIM
    numbers = tl.load(x + outer * x_outer_stride + row * x_row_stride + dims, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(weight + dims, mask=mask, other=0.0).to(tl.float32)
    if PLUS_ONE:
        scale += 1.0
    numbers = numbers * tl.rsqrt(tl.sum(numbers * numbers, 0) / DIM + eps) * scale
    target = out + outer * out_outer_stride + row * out_row_stride + dims
    tl.store(target, numbers.to(out.dtype.element_ty), mask=mask)


def fits(x: torch.Tensor) -> bool:
    """Returns whether ``rms_norm`` takes these rows: ``[1, tokens, dim]``, or ``[1, heads, tokens, dim]`` in any layout with
    dense rows."""
    return x.dim() in (3, 4) and x.shape[0] == 1 and x.stride(-1) == 1 and x.shape[-1] <= _LARGEST


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, plus_one: bool) -> torch.Tensor:
    """Returns ``x`` over its root mean square, times ``weight [dim]`` or 1 + ``weight``, in the layout of ``x``."""
    out = torch.empty_like(x)
    rows, outer = x.shape[-2], x.shape[1] if x.dim() == 4 else 1
    dim = x.shape[-1]
    pad = triton.next_power_of_2(dim)
    with torch.cuda.device_of(x):
        rms_norm_kernel[rows, outer](
            out, x, weight, eps, x.stride(1), x.stride(-2), out.stride(1), out.stride(-2),
            DIM=dim, PAD=pad, PLUS_ONE=plus_one, num_warps=min(16, max(1, pad // 512)),
        )  # fmt: skip
    return out
