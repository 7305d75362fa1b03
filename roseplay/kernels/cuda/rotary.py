"""Rotary embeddings of queries and keys in one Triton launch; written out in torch they take ten kernels a layer."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def rotate_kernel(
    q, k, cos, sin, q_out, k_out, q_head_stride, q_token_stride, k_head_stride, k_token_stride, cos_stride, sin_stride,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Rotate one head of one token. Grid: tokens, heads of ``q`` and then of ``k``."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, PAD)
    mask = dims < HALF
    if head < Q_HEADS:
        source = q + head * q_head_stride + token * q_token_stride
        target = q_out + (token * Q_HEADS + head) * 2 * HALF
    else:
        source = k + (head - Q_HEADS) * k_head_stride + token * k_token_stride
        target = k_out + (token * K_HEADS + head - Q_HEADS) * 2 * HALF
    low = tl.load(source + dims, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(source + HALF + dims, mask=mask, other=0.0).to(tl.float32)
    cos_row, sin_row = cos + token * cos_stride, sin + token * sin_stride
    new_low = low * tl.load(cos_row + dims, mask=mask, other=0.0).to(tl.float32)
    new_low -= high * tl.load(sin_row + dims, mask=mask, other=0.0).to(tl.float32)
    new_high = high * tl.load(cos_row + HALF + dims, mask=mask, other=0.0).to(tl.float32)
    new_high += low * tl.load(sin_row + HALF + dims, mask=mask, other=0.0).to(tl.float32)
    tl.store(target + dims, new_low.to(target.dtype.element_ty), mask=mask)
    tl.store(target + HALF + dims, new_high.to(target.dtype.element_ty), mask=mask)


def fits(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Returns whether ``rotate`` takes these: one row of tokens, whole heads rotated, the last dimension contiguous."""
    alike = q.shape[0] == k.shape[0] == 1 and q.shape[2:] == k.shape[2:] and cos.shape == sin.shape
    dense = all(x.stride(-1) == 1 for x in (q, k, cos, sin))
    return alike and dense and cos.shape == (1, *q.shape[2:]) and q.dtype == k.dtype and q.shape[3] % 2 == 0


def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x * cos + rotate_half(x) * sin`` in float32, of ``q`` ``[1, heads, tokens, dim]`` and ``k`` ``[1, kv_heads, tokens, dim]``.

    ``cos`` and ``sin`` are ``[1, tokens, dim]``. The results have the shapes of ``q`` and ``k``, tokens outermost in memory.
    """
    tokens, dim = q.shape[2:]
    q_out = q.new_empty((1, tokens, q.shape[1], dim))
    k_out = k.new_empty((1, tokens, k.shape[1], dim))
    pad = max(16, triton.next_power_of_2(dim // 2))
    with torch.cuda.device_of(q):
        rotate_kernel[tokens, q.shape[1] + k.shape[1]](
            q, k, cos, sin, q_out, k_out, q.stride(1), q.stride(2), k.stride(1), k.stride(2), cos.stride(1), sin.stride(1),
            Q_HEADS=q.shape[1], K_HEADS=k.shape[1], HALF=dim // 2, PAD=pad, num_warps=1,
        )  # fmt: skip
    return q_out.transpose(1, 2), k_out.transpose(1, 2)
