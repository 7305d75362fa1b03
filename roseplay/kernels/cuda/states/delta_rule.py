"""Computes prompts of the gated delta rule (Yang et al. 2024, arXiv:2412.06464) in two Triton launches, with a decay of each
head or of each number of a key (Kimi Delta Attention, arXiv:2510.26692).

What the tokens of a chunk add to the state follows from their keys and the state before the chunk by a triangular system:
with ``A_ij = beta_i (k_i . d_ij k_j)`` for j < i, where d_ij is the decay from token j to token i, and T the inverse of
``I + A``, it is ``U - W S``, where ``U = T (beta v)`` and ``W = T (beta d k)`` (WY representation and UT transform). The
first kernel computes U, W and the scores ``q_i . d_ij k_j`` of all chunks at once, the second one goes through the chunks of
each row.

T is found block by block: the inverse of a pair of blocks ``[[P, 0], [R, Q]]`` is ``[[P', 0], [-Q' R P', Q']]`` with the
inverses P' and Q', and doublings lead from pairs of tokens to the chunk, by two products of whole chunks each.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from roseplay.kernels.cuda.dots import pad, precision
from roseplay.kernels.cuda.states.rows import chunk_of, chunks_of, dense, launch_options
from roseplay.kernels.state_functions import DeltaRule, check, gated_delta_rule, packed_rows

_MOST_DIM = 128
_EPS = tl.constexpr(1e-6)  # in the norms of queries and keys


@triton.jit
def _load(rows, token, inside, stride, dim, PAD: tl.constexpr):
    """Returns vectors of a chunk's tokens, float32 [tokens, PAD]."""
    dims = tl.arange(0, PAD)
    mask = inside[:, None] & (dims < dim)[None, :]
    return tl.load(rows + token[:, None] * stride + dims[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store(rows, x, token, inside, stride, dim, PAD: tl.constexpr):
    dims = tl.arange(0, PAD)
    mask = inside[:, None] & (dims < dim)[None, :]
    tl.store(rows + token[:, None] * stride + dims[None, :], x.to(rows.dtype.element_ty), mask=mask)


@triton.jit
def _normalised(rows, token, inside, stride, dim, PAD: tl.constexpr):
    """Returns the same, over their norms."""
    x = _load(rows, token, inside, stride, dim, PAD)
    return x * tl.rsqrt(tl.sum(x * x, 1) + _EPS)[:, None]


@triton.jit
def _decayed_products(queries, keys, sums, CHUNK: tl.constexpr, BY_CHANNEL: tl.constexpr, PRECISION: tl.constexpr):
    """Returns the products of queries and of keys (rows) with the keys of earlier tokens (columns), decayed from these on.

    ``sums`` [CHUNK, 1], or ``BY_CHANNEL`` [CHUNK, dims], are the logarithms of the decay from the begin of the chunk to the
    end of each token. Their difference is taken before the exponential, which would overflow for each of the two.
    """
    i = tl.arange(0, CHUNK)
    if BY_CHANNEL:
        scores = tl.zeros((CHUNK, CHUNK), tl.float32)
        system = tl.zeros((CHUNK, CHUNK), tl.float32)
        for j in range(CHUNK):
            here = (i == j)[:, None]
            decay = tl.exp(tl.minimum(sums - tl.sum(tl.where(here, sums, 0.0), 0)[None, :], 0.0))
            key = decay * tl.sum(tl.where(here, keys, 0.0), 0)[None, :]
            column = (i == j)[None, :]
            scores = tl.where(column, tl.sum(queries * key, 1)[:, None], scores)
            system = tl.where(column, tl.sum(keys * key, 1)[:, None], system)
    else:
        decay = tl.exp(tl.minimum(sums - tl.trans(sums), 0.0))
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * decay
        system = tl.dot(keys, tl.trans(keys), input_precision=PRECISION) * decay
    return tl.where(i[:, None] >= i[None, :], scores, 0.0), tl.where(i[:, None] > i[None, :], system, 0.0)


@triton.jit
def _inverse(system, CHUNK: tl.constexpr, DOUBLINGS: tl.constexpr, SOLVE: tl.constexpr):
    """Returns the inverse of ``I + system``, which is 0 on and above its diagonal."""
    i = tl.arange(0, CHUNK)
    same_pair = (i[:, None] ^ i[None, :]) == 1
    inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0) - tl.where(same_pair, system, 0.0)
    for doubling in tl.static_range(1, DOUBLINGS):
        low = ((i[:, None] >> doubling) ^ (i[None, :] >> doubling)) == 1
        corner = tl.dot(tl.where(low, system, 0.0), inverse, input_precision=SOLVE)
        inverse -= tl.dot(inverse, corner, input_precision=SOLVE)
    return inverse


@triton.jit(do_not_specialize_on_alignment=["cu_seqlens"])  # a part of one packed upload
def prepare_kernel(
    u, w, scores, q, k, v, g, beta, chunks, cu_seqlens, scale, q_stride, k_stride, v_stride, g_stride, beta_stride,
    V_HEADS: tl.constexpr, GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_PAD: tl.constexpr, V_PAD: tl.constexpr, DECAYS: tl.constexpr, DECAYS_PAD: tl.constexpr,
    CHUNK: tl.constexpr, DOUBLINGS: tl.constexpr, SOLVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write U [tokens, V_HEADS, V_DIM], W [tokens, V_HEADS, K_DIM] and scores [tokens, V_HEADS, CHUNK], float32, of a chunk.

    Grid: chunks, heads of values. ``DECAYS`` is the number of decays of a head, 1 or ``K_DIM``. ``SOLVE`` is the precision
    of the products that invert ``I + A``, ``PRECISION`` that of all others.
    """
    row, number = tl.load(chunks + 2 * tl.program_id(0)), tl.load(chunks + 2 * tl.program_id(0) + 1)
    head = tl.program_id(1)
    token = tl.load(cu_seqlens + row) + number * CHUNK + tl.arange(0, CHUNK)
    inside = token < tl.load(cu_seqlens + row + 1)
    queries = _normalised(q + head // GROUP * K_DIM, token, inside, q_stride, K_DIM, K_PAD) * scale
    keys = _normalised(k + head // GROUP * K_DIM, token, inside, k_stride, K_DIM, K_PAD)
    sums = tl.cumsum(_load(g + head * DECAYS, token, inside, g_stride, DECAYS, DECAYS_PAD), 0)
    gates = tl.load(beta + token * beta_stride + head, mask=inside, other=0.0).to(tl.float32)[:, None]
    products, system = _decayed_products(queries, keys, sums, CHUNK, DECAYS > 1, PRECISION)
    place = token * V_HEADS + head
    _store(scores, products, place, inside, CHUNK, CHUNK, CHUNK)
    inverse = _inverse(system * gates, CHUNK, DOUBLINGS, SOLVE)
    result = tl.dot(inverse, keys * gates * tl.exp(sums), input_precision=PRECISION)
    _store(w, result, place, inside, K_DIM, K_DIM, K_PAD)
    values = _load(v + head * V_DIM, token, inside, v_stride, V_DIM, V_PAD)
    result = tl.dot(inverse, values * gates, input_precision=PRECISION)
    _store(u, result, place, inside, V_DIM, V_DIM, V_PAD)


@triton.jit(do_not_specialize_on_alignment=["cu_seqlens", "seq_lens"])
def scan_kernel(
    out, q, k, u, w, scores, g, states, slots, cu_seqlens, seq_lens, scale, q_stride, k_stride, g_stride,
    V_HEADS: tl.constexpr, GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_PAD: tl.constexpr, DECAYS: tl.constexpr, DECAYS_PAD: tl.constexpr, BLOCK_V: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Go through the chunks of a row, for a part of a head's values. Grid: rows, heads of values, parts.

    ``out`` is [tokens, V_HEADS, V_DIM], ``states`` float32 [slots, V_HEADS, K_DIM, V_DIM].
    """
    row, head, first_v = tl.program_id(0), tl.program_id(1), tl.program_id(2) * BLOCK_V
    begin, end = tl.load(cu_seqlens + row), tl.load(cu_seqlens + row + 1)
    if begin == end:
        return
    k_dims, v_dims = tl.arange(0, K_PAD), first_v + tl.arange(0, BLOCK_V)
    mask = (k_dims < K_DIM)[:, None] & (v_dims < V_DIM)[None, :]
    places = states + (tl.load(slots + row) * V_HEADS + head) * K_DIM * V_DIM
    places += k_dims[:, None] * V_DIM + v_dims[None, :]
    goes_on = tl.load(seq_lens + row) > end - begin
    state = tl.load(places, mask=mask & goes_on, other=0.0)
    for first in range(begin, end, CHUNK):
        token = first + tl.arange(0, CHUNK)
        inside = token < end
        queries = _normalised(q + head // GROUP * K_DIM, token, inside, q_stride, K_DIM, K_PAD) * scale
        keys = _normalised(k + head // GROUP * K_DIM, token, inside, k_stride, K_DIM, K_PAD)
        decays = _load(g + head * DECAYS, token, inside, g_stride, DECAYS, DECAYS_PAD)
        sums, total = tl.cumsum(decays, 0), tl.sum(decays, 0)
        place = token * V_HEADS + head
        read = _load(w, place, inside, K_DIM, K_DIM, K_PAD)
        added = _load(u + first_v, place, inside, V_DIM, V_DIM - first_v, BLOCK_V)
        added -= tl.dot(read, state, input_precision=PRECISION)
        products = _load(scores, place, inside, CHUNK, CHUNK, CHUNK)
        result = tl.dot(queries * tl.exp(sums), state, input_precision=PRECISION)
        result += tl.dot(products, added, input_precision=PRECISION)
        _store(out + first_v, result, place, inside, V_DIM, V_DIM - first_v, BLOCK_V)
        keys *= tl.exp(total[None, :] - sums)
        state = state * tl.exp(total)[:, None] + tl.dot(tl.trans(keys), added, input_precision=PRECISION)
    tl.store(places, state, mask=mask)


@gated_delta_rule
def chunk_gated_delta_rule(rule: DeltaRule) -> torch.Tensor:
    """Apply the rule to the rows of a packed batch; keys and values have at most 128 numbers."""
    v_heads, group, k_dim, v_dim = rule.sizes
    check(len(rule.query) == 1 and max(k_dim, v_dim) <= _MOST_DIM, f"several batches, or heads of {k_dim} and {v_dim}")
    chunk = chunk_of(rule.query.dtype)
    chunks, rows = chunks_of(rule.states, chunk), packed_rows(rule.states)
    q, k, v = (dense(x[0]) for x in (rule.query, rule.key, rule.value))
    g = dense(rule.g[0] if rule.by_channel else rule.g[0, :, :, None])
    gates = rule.beta[0] if rule.beta.stride(2) == 1 else rule.beta[0].contiguous()
    out = torch.empty(rule.value.shape, dtype=q.dtype, device=q.device)
    u, w, scores = (q.new_empty((len(v), v_heads, dim), dtype=torch.float32) for dim in (v_dim, k_dim, chunk))
    sizes: dict[str, Any] = {"V_HEADS": v_heads, "GROUP": group, "K_DIM": k_dim, "V_DIM": v_dim}
    sizes |= {"K_PAD": pad(k_dim), "CHUNK": chunk, "PRECISION": precision(q.dtype), **launch_options()}
    sizes |= {"DECAYS": g.shape[2], "DECAYS_PAD": pad(k_dim) if rule.by_channel else 1}
    block_v = min(chunk, pad(v_dim))
    with torch.cuda.device_of(q):
        prepare_kernel[len(chunks), v_heads](
            u, w, scores, q, k, v, g, gates, chunks, rows.cu_seqlens, k_dim**-0.5,
            q.stride(0), k.stride(0), v.stride(0), g.stride(0), gates.stride(0),
            V_PAD=pad(v_dim), DOUBLINGS=chunk.bit_length() - 1, SOLVE=precision(torch.float32), **sizes,
        )  # fmt: skip
        scan_kernel[len(rows.seq_lens), v_heads, triton.cdiv(v_dim, block_v)](
            out, q, k, u, w, scores, g, rule.states.tensor, rule.states.slots, rows.cu_seqlens, rows.seq_lens,
            k_dim**-0.5, q.stride(0), k.stride(0), g.stride(0), BLOCK_V=block_v, **sizes,
        )  # fmt: skip
    return out
