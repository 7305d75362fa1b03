"""Queries and keys normalised by head and rotated, and keys and values written to the KV cache, in one Triton launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from roseplay.kernels.cuda.norms import FusedRMSNorm

_NUMBERS = 1024  # that a program reads: 16 bytes of 2-byte numbers for each of 64 threads


@triton.jit
def _rotated(
    source, weight, eps, cos, sin, head, heads, source_head_stride, HALF: tl.constexpr, PAD: tl.constexpr,
    NORM: tl.constexpr, PLUS_ONE: tl.constexpr,
):  # fmt: skip
    """Returns the first and the second half of some heads, float32, after the norm and the rotation."""
    dims = tl.arange(0, PAD)
    mask = (head < heads)[:, None] & (dims < HALF)[None, :]
    place = source + head[:, None] * source_head_stride + dims[None, :]
    dtype: tl.constexpr = source.dtype.element_ty
    low = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(place + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(low * low + high * high, 1)
        factor = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
        low_scale = tl.load(weight + dims, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
        high_scale = tl.load(weight + HALF + dims, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
        if PLUS_ONE:
            low_scale += 1.0
            high_scale += 1.0
        low = (low * factor * low_scale).to(dtype).to(tl.float32)
        high = (high * factor * high_scale).to(dtype).to(tl.float32)
    low_cos = tl.load(cos + dims, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    low_sin = tl.load(sin + dims, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    high_cos = tl.load(cos + HALF + dims, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    high_sin = tl.load(sin + HALF + dims, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    return low * low_cos - high * low_sin, high * high_cos + low * high_sin, mask


@triton.jit(do_not_specialize_on_alignment=["slot_mapping"])  # a part of one packed upload, which begins anywhere
def rotate_append_kernel(
    q_out, keys, values, q, k, v, q_weight, k_weight, cos, sin, slot_mapping, q_eps, k_eps,
    q_token_stride, q_head_stride, k_token_stride, k_head_stride, v_token_stride, v_head_stride,
    keys_block_stride, keys_head_stride, values_block_stride, values_head_stride, cos_stride, sin_stride,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HALF: tl.constexpr, PAD: tl.constexpr, V_DIM: tl.constexpr, V_PAD: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, Q_PLUS_ONE: tl.constexpr, K_PLUS_ONE: tl.constexpr,
):  # fmt: skip
    """Compute ``BLOCK_H`` heads of one token. Grid: tokens, groups of query heads, then of key heads, then of value heads.

    A negative slot means block 0, which no request owns.
    """
    Q_GROUPS: tl.constexpr = (Q_HEADS + BLOCK_H - 1) // BLOCK_H
    KV_GROUPS: tl.constexpr = (KV_HEADS + BLOCK_H - 1) // BLOCK_H
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    dims = tl.arange(0, PAD)
    cos_row, sin_row = cos + token * cos_stride, sin + token * sin_stride
    if group < Q_GROUPS:
        head = group * BLOCK_H + tl.arange(0, BLOCK_H)
        low, high, mask = _rotated(
            q + token * q_token_stride, q_weight, q_eps, cos_row, sin_row, head, Q_HEADS, q_head_stride,
            HALF, PAD, Q_NORM, Q_PLUS_ONE,
        )  # fmt: skip
        target = q_out + (token * Q_HEADS + head)[:, None] * (2 * HALF) + dims[None, :]
        tl.store(target, low.to(q_out.dtype.element_ty), mask=mask)
        tl.store(target + HALF, high.to(q_out.dtype.element_ty), mask=mask)
    else:
        slot = tl.maximum(tl.load(slot_mapping + token), 0)
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        if group < Q_GROUPS + KV_GROUPS:
            head = (group - Q_GROUPS) * BLOCK_H + tl.arange(0, BLOCK_H)
            low, high, mask = _rotated(
                k + token * k_token_stride, k_weight, k_eps, cos_row, sin_row, head, KV_HEADS, k_head_stride,
                HALF, PAD, K_NORM, K_PLUS_ONE,
            )  # fmt: skip
            place = block * keys_block_stride + head.to(tl.int64) * keys_head_stride + offset * (2 * HALF)
            target = keys + place[:, None] + dims[None, :]
            tl.store(target, low.to(keys.dtype.element_ty), mask=mask)
            tl.store(target + HALF, high.to(keys.dtype.element_ty), mask=mask)
        else:
            head = (group - Q_GROUPS - KV_GROUPS) * BLOCK_H + tl.arange(0, BLOCK_H)
            v_dims = tl.arange(0, V_PAD)
            v_mask = (head < KV_HEADS)[:, None] & (v_dims < V_DIM)[None, :]
            source = v + token * v_token_stride + head[:, None] * v_head_stride + v_dims[None, :]
            numbers = tl.load(source, mask=v_mask, other=0.0)
            place = block * values_block_stride + head.to(tl.int64) * values_head_stride + offset * V_DIM
            tl.store(values + place[:, None] + v_dims[None, :], numbers.to(values.dtype.element_ty), mask=v_mask)


def fits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Returns whether ``rotate_append`` takes these: one row of tokens, whole heads rotated, the last dimension contiguous."""
    alike = q.shape[0] == k.shape[0] == v.shape[0] == 1 and q.shape[2:] == k.shape[2:] and k.shape[1:3] == v.shape[1:3]
    dense = all(x.stride(-1) == 1 for x in (q, k, v, cos, sin)) and q.dtype == k.dtype == v.dtype
    return alike and dense and cos.shape == sin.shape == (1, *q.shape[2:]) and q.shape[3] % 2 == 0


def rotate_append(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    norms: tuple[FusedRMSNorm | None, ...],
    keys: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Write keys and values to a layer's cache; returns the rotated ``q`` ``[1, heads, tokens, dim]``, tokens outermost.

    Args:
        q, k, v: ``[1, heads, tokens, dim]``; ``q`` and ``k`` are normalised by head, if there are norms, then rotated:
            ``x * cos + rotate_half(x) * sin``.
        norms: of the heads of ``q`` and of ``k``.
        cos, sin: ``[1, tokens, dim]``.
        keys, values: see ``KVCache``.
        slot_mapping: ``[tokens]``.
    """
    q_norm, k_norm = norms
    _, heads, tokens, dim = q.shape
    kv_heads, v_dim = v.shape[1], v.shape[3]
    q_out = q.new_empty((1, tokens, heads, dim))
    pad, v_pad = (max(16, triton.next_power_of_2(size)) for size in (dim // 2, v_dim))
    block_h = max(1, min(triton.next_power_of_2(heads), _NUMBERS // (2 * pad)))
    groups = triton.cdiv(heads, block_h) + 2 * triton.cdiv(kv_heads, block_h)
    with torch.cuda.device_of(q):
        rotate_append_kernel[tokens, groups](
            q_out, keys, values, q, k, v,
            q if q_norm is None else q_norm.weight, k if k_norm is None else k_norm.weight, cos, sin, slot_mapping,
            0.0 if q_norm is None else q_norm.eps, 0.0 if k_norm is None else k_norm.eps,
            q.stride(2), q.stride(1), k.stride(2), k.stride(1), v.stride(2), v.stride(1),
            keys.stride(0), keys.stride(1), values.stride(0), values.stride(1), cos.stride(1), sin.stride(1),
            Q_HEADS=heads, KV_HEADS=kv_heads, BLOCK_H=block_h, BLOCK_SIZE=keys.shape[2],
            HALF=dim // 2, PAD=pad, V_DIM=v_dim, V_PAD=v_pad, Q_NORM=q_norm is not None, K_NORM=k_norm is not None,
            Q_PLUS_ONE=q_norm is not None and q_norm.plus_one, K_PLUS_ONE=k_norm is not None and k_norm.plus_one,
            num_warps=2,
        )  # fmt: skip
    return q_out.transpose(1, 2)
