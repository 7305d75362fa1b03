"""Writes the keys and values of a layer to their slots in one Triton launch."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _write(source, target, scales, token, slot, head, token_stride, head_stride, block_stride, target_head_stride,
           NUM_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr,
           INT8: tl.constexpr):  # fmt: skip
    dims = tl.arange(0, PAD)
    mask = (head < NUM_HEADS)[:, None] & (dims < DIM)[None, :]
    numbers = tl.load(source + token * token_stride + head[:, None] * head_stride + dims[None, :], mask=mask, other=0.0)
    if INT8 and DIM > 0:
        numbers = numbers.to(tl.float32)
        # Divided as torch divides; the scale of a row with NaN is NaN; adding and subtracting 1.5 * 2**23 rounds to integers.
        most = tl.max(tl.abs(numbers), 1)
        scale = tl.div_rn(most, tl.full(most.shape, 127.0, tl.float32)) + tl.sum(numbers * 0.0, 1)
        divisor = tl.broadcast_to(tl.where(scale == 0.0, 1.0, scale)[:, None], numbers.shape)
        numbers = tl.div_rn(numbers, divisor) + 12582912.0 - 12582912.0
        row = ((slot // BLOCK_SIZE) * NUM_HEADS + head) * BLOCK_SIZE + slot % BLOCK_SIZE
        tl.store(scales + row, scale, mask=head < NUM_HEADS)
    place = (slot // BLOCK_SIZE) * block_stride + head.to(tl.int64) * target_head_stride + (slot % BLOCK_SIZE) * DIM
    tl.store(target + place[:, None] + dims[None, :], numbers.to(target.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["slot_mapping"])  # a part of one packed upload, which begins anywhere
def append_kernel(
    k, v, keys, values, key_scales, value_scales, slot_mapping,
    k_token_stride, k_head_stride, v_token_stride, v_head_stride,
    keys_block_stride, keys_head_stride, values_block_stride, values_head_stride,
    NUM_HEADS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """Write keys and values of one token and ``BLOCK_H`` KV heads. Grid: tokens, groups of heads.

    ``k`` [tokens, kv_heads, k_dim] is written to ``keys`` [blocks, kv_heads, block_size, k_dim], ``v`` to ``values``. A
    negative slot means block 0, which no request owns. ``INT8``: they are written as codes and scales, see ``KVCache``.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    slot = tl.maximum(tl.load(slot_mapping + token), 0)
    _write(k, keys, key_scales, token, slot, head, k_token_stride, k_head_stride, keys_block_stride, keys_head_stride,
           NUM_HEADS, BLOCK_SIZE, K_DIM, K_PAD, INT8)  # fmt: skip
    _write(v, values, value_scales, token, slot, head, v_token_stride, v_head_stride, values_block_stride,
           values_head_stride, NUM_HEADS, BLOCK_SIZE, V_DIM, V_PAD, INT8)  # fmt: skip
