"""Computes prompts of the gated delta rule (Yang et al. 2024, arXiv:2412.06464) in two Triton launches.

What the tokens of a chunk add to the state follows from their keys and the state before the chunk by a triangular system:
with ``A_ij = beta_i d_ij (k_i . k_j)`` for j < i, where d_ij is the decay from token j to token i, and T the inverse of
``I + A``, it is ``U - W S``, where ``U = T (beta v)`` and ``W = T (beta d k)`` (WY representation and UT transform). The
first kernel computes U and W of all chunks at once, the second one goes through the chunks of each row.

T is found block by block: the inverse of a pair of blocks ``[[P, 0], [R, Q]]`` is ``[[P', 0], [-Q' R P', Q']]`` with the
inverses P' and Q', and doublings lead from pairs of tokens to the chunk, by two products of whole chunks each.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from roseplay.kernels.cuda.states.rows import (
    check,
    check_unpacked,
    chunk_of,
    chunks_of,
    dense,
    launch_options,
    pad,
    precision,
)
from roseplay.model.states import SlotStates

_MOST_DIM = 128
_EPS = tl.constexpr(1e-6)  # in the norms of queries and keys


@triton.jit
def _normalised(rows, token, inside, stride, DIM: tl.constexpr, PAD: tl.constexpr):
    """Returns the vectors of a chunk's tokens over their norms, float32 [tokens, PAD]."""
    dims = tl.arange(0, PAD)
    mask = inside[:, None] & (dims < DIM)[None, :]
    x = tl.load(rows + token[:, None] * stride + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x, 1) + _EPS)[:, None]


@triton.jit
def _decay_sums(g, token, inside, stride):
    """Returns the logarithms of the decay from the begin of the chunk to the end of each token."""
    return tl.cumsum(tl.load(g + token * stride, mask=inside, other=0.0), 0)


@triton.jit
def _decay_between(sums):
    """Returns the decay from each token (column) to each later one (row)."""
    return tl.exp(tl.minimum(sums[:, None] - sums[None, :], 0.0))


@triton.jit(do_not_specialize_on_alignment=["cu_seqlens"])  # a part of one packed upload
def prepare_kernel(
    u, w, k, v, g, beta, chunks, cu_seqlens, k_stride, v_stride, g_stride, beta_stride,
    V_HEADS: tl.constexpr, GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_PAD: tl.constexpr, V_PAD: tl.constexpr, CHUNK: tl.constexpr, DOUBLINGS: tl.constexpr,
    SOLVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write U [tokens, V_HEADS, V_DIM] and W [tokens, V_HEADS, K_DIM], float32, of one chunk. Grid: chunks, heads of values.

    ``SOLVE`` is the precision of the products that invert ``I + A``, ``PRECISION`` that of all others.
    """
    row, number = tl.load(chunks + 2 * tl.program_id(0)), tl.load(chunks + 2 * tl.program_id(0) + 1)
    head = tl.program_id(1)
    i, k_dims, v_dims = tl.arange(0, CHUNK), tl.arange(0, K_PAD), tl.arange(0, V_PAD)
    token = tl.load(cu_seqlens + row) + number * CHUNK + i
    inside = token < tl.load(cu_seqlens + row + 1)
    keys = _normalised(k + head // GROUP * K_DIM, token, inside, k_stride, K_DIM, K_PAD)
    sums = _decay_sums(g + head, token, inside, g_stride)
    gates = tl.load(beta + token * beta_stride + head, mask=inside, other=0.0).to(tl.float32)
    system = tl.dot(keys, tl.trans(keys), input_precision=PRECISION) * _decay_between(sums) * gates[:, None]
    same_pair = (i[:, None] ^ i[None, :]) == 1
    inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0) - tl.where(
        same_pair & (i[:, None] > i[None, :]), system, 0.0
    )
    for doubling in tl.static_range(1, DOUBLINGS):
        low = ((i[:, None] >> doubling) ^ (i[None, :] >> doubling)) == 1
        corner = tl.where(low & (i[:, None] > i[None, :]), system, 0.0)
        corner = tl.dot(corner, inverse, input_precision=SOLVE)
        inverse -= tl.dot(inverse, corner, input_precision=SOLVE)
    place = token * V_HEADS + head
    found = tl.dot(inverse, keys * (gates * tl.exp(sums))[:, None], input_precision=PRECISION)
    mask = inside[:, None] & (k_dims < K_DIM)[None, :]
    tl.store(w + place[:, None] * K_DIM + k_dims[None, :], found, mask=mask)
    mask = inside[:, None] & (v_dims < V_DIM)[None, :]
    values = tl.load(v + token[:, None] * v_stride + head * V_DIM + v_dims[None, :], mask=mask, other=0.0)
    found = tl.dot(inverse, values.to(tl.float32) * gates[:, None], input_precision=PRECISION)
    tl.store(u + place[:, None] * V_DIM + v_dims[None, :], found, mask=mask)


@triton.jit(do_not_specialize_on_alignment=["cu_seqlens", "seq_lens"])
def scan_kernel(
    out, q, k, u, w, g, states, slots, cu_seqlens, seq_lens, scale, q_stride, k_stride, g_stride,
    V_HEADS: tl.constexpr, GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_PAD: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Go through the chunks of a row, for a part of a head's values. Grid: rows, heads of values, parts.

    ``out`` is [tokens, V_HEADS, V_DIM], ``states`` float32 [slots, V_HEADS, K_DIM, V_DIM].
    """
    row, head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(cu_seqlens + row), tl.load(cu_seqlens + row + 1)
    if begin == end:
        return
    i, k_dims = tl.arange(0, CHUNK), tl.arange(0, K_PAD)
    v_dims = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    state_mask = (k_dims < K_DIM)[:, None] & (v_dims < V_DIM)[None, :]
    places = states + (tl.load(slots + row) * V_HEADS + head) * K_DIM * V_DIM
    places += k_dims[:, None] * V_DIM + v_dims[None, :]
    goes_on = tl.load(seq_lens + row) > end - begin
    state = tl.load(places, mask=state_mask & goes_on, other=0.0)
    for first in range(begin, end, CHUNK):
        token = first + i
        inside = token < end
        queries = _normalised(q + head // GROUP * K_DIM, token, inside, q_stride, K_DIM, K_PAD) * scale
        keys = _normalised(k + head // GROUP * K_DIM, token, inside, k_stride, K_DIM, K_PAD)
        sums = _decay_sums(g + head, token, inside, g_stride)
        total = tl.sum(tl.load(g + head + token * g_stride, mask=inside, other=0.0), 0)
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * _decay_between(sums)
        scores = tl.where(i[:, None] >= i[None, :], scores, 0.0)
        place = token * V_HEADS + head
        mask = inside[:, None] & (k_dims < K_DIM)[None, :]
        read = tl.load(w + place[:, None] * K_DIM + k_dims[None, :], mask=mask, other=0.0)
        mask = inside[:, None] & (v_dims < V_DIM)[None, :]
        added = tl.load(u + place[:, None] * V_DIM + v_dims[None, :], mask=mask, other=0.0)
        added -= tl.dot(read, state, input_precision=PRECISION)
        result = tl.dot(queries * tl.exp(sums)[:, None], state, input_precision=PRECISION)
        result += tl.dot(scores, added, input_precision=PRECISION)
        tl.store(out + place[:, None] * V_DIM + v_dims[None, :], result.to(out.dtype.element_ty), mask=mask)
        keys *= tl.exp(total - sums)[:, None]
        state = state * tl.exp(total) + tl.dot(tl.trans(keys), added, input_precision=PRECISION)
    tl.store(places, state, mask=state_mask)


def chunk_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: SlotStates,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the rule to the rows of a packed batch, updating their states in place.

    Args:
        query, key: ``[1, tokens, k_heads, k_dim]``; ``value``: ``[1, tokens, v_heads, v_dim]``; dims of at most 128.
        g: float32 ``[1, tokens, v_heads]``, the logarithm of the decay; ``beta``: ``[1, tokens, v_heads]``.
        initial_state: float32 ``[slots, v_heads, k_dim, v_dim]``, with the rows.
        use_qk_l2norm_in_kernel: must be set.

    Returns ``[1, tokens, v_heads, v_dim]`` in the query's dtype, and the states of all slots. Raises ``ValueError`` for
    anything else.
    """
    batch, tokens, k_heads, k_dim = key.shape
    v_heads, v_dim = value.shape[-2:]
    states = initial_state.tensor
    check(batch == 1 and use_qk_l2norm_in_kernel and v_heads % k_heads == 0, "several batches, or no norm")
    check(states.shape[1:] == (v_heads, k_dim, v_dim) and states.is_contiguous(), f"states of {states.shape}")
    check(states.dtype == g.dtype == torch.float32, "states or decays in half precision")
    check(g.shape == (1, tokens, v_heads) and max(k_dim, v_dim) <= _MOST_DIM, f"decays of {g.shape}, heads of {k_dim}")
    check_unpacked(kwargs)
    chunk = chunk_of(query.dtype)
    chunks, rows = chunks_of(initial_state, chunk), initial_state.rows
    assert rows is not None
    q, k, v = (dense(x[0]) for x in (query, key, value))
    decay, gates = (x[0] if x.stride(2) == 1 else x[0].contiguous() for x in (g, beta))
    out = torch.empty((1, tokens, v_heads, v_dim), dtype=query.dtype, device=query.device)
    u, w = (torch.empty((tokens, v_heads, dim), dtype=torch.float32, device=query.device) for dim in (v_dim, k_dim))
    sizes: dict[str, Any] = {"V_HEADS": v_heads, "GROUP": v_heads // k_heads, "K_DIM": k_dim, "V_DIM": v_dim}
    sizes |= {"K_PAD": pad(k_dim), "CHUNK": chunk, "PRECISION": precision(query.dtype), **launch_options()}
    block_v = min(chunk, pad(v_dim))
    with torch.cuda.device_of(query):
        prepare_kernel[len(chunks), v_heads](
            u, w, k, v, decay, gates, chunks, rows.cu_seqlens, k.stride(0), v.stride(0), decay.stride(0), gates.stride(0),
            V_PAD=pad(v_dim), DOUBLINGS=chunk.bit_length() - 1, SOLVE=precision(torch.float32), **sizes,
        )  # fmt: skip
        scan_kernel[len(rows.seq_lens), v_heads, triton.cdiv(v_dim, block_v)](
            out, q, k, u, w, decay, states, initial_state.slots, rows.cu_seqlens, rows.seq_lens, k_dim**-0.5,
            q.stride(0), k.stride(0), decay.stride(0), BLOCK_V=block_v, **sizes,
        )  # fmt: skip
    return out, states
