"""Paged attention in Triton: one kernel for prompts, decodes or both together, and one that joins split contexts.

After FlashAttention-2 (online softmax over tiles), FlashDecoding (split contexts), PagedAttention (block tables) and the
unified kernel of vLLM (ragged rows found by binary search in a grid of a fixed size). Scores are scaled to base 2, because
the hardware's exponential is 2**x.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _find_row(cu_seqlens_q, tile, num_rows, BLOCK_Q: tl.constexpr):
    """Returns the row of a query tile; ``num_rows`` for tiles after the last row.

    The tiles of row r begin at ``cu_seqlens_q[r] // BLOCK_Q + r``, which leaves enough tiles for the rows before it.
    """
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high + 1) // 2
        first_tile = tl.load(cu_seqlens_q + middle).to(tl.int32) // BLOCK_Q + middle
        if first_tile <= tile:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _place_tile(cu_seqlens_q, seq_lens, num_rows, BLOCK_Q: tl.constexpr, DECODE: tl.constexpr):
    """Returns this program's query tile: ``tile, row, q_begin, q_len, seq_len, begin``.

    The tile begins at token ``begin`` of the ``q_len`` tokens of ``row``, which begin at token ``q_begin`` of the batch and
    are the last of a context of ``seq_len`` tokens. ``q_len`` is 0 for padding.
    """
    if DECODE:  # one token a row, or none: no need to search
        tile = tl.program_id(0)
        row = tile
        q_begin = row
        q_len = (tl.load(cu_seqlens_q + row + 1) - tl.load(cu_seqlens_q + row)).to(tl.int32)
        seq_len = tl.load(seq_lens + row).to(tl.int32)
        begin = row - q_begin
    else:  # the longest contexts first: they are those of the last tiles of a prompt
        tile = tl.num_programs(0) - 1 - tl.program_id(0)
        row = _find_row(cu_seqlens_q, tile, num_rows, BLOCK_Q)
        q_begin = tl.load(cu_seqlens_q + row).to(tl.int32)
        q_end = tl.load(cu_seqlens_q + tl.minimum(row + 1, num_rows)).to(tl.int32)
        q_len = q_end - q_begin
        seq_len = tl.load(seq_lens + tl.minimum(row, num_rows - 1)).to(tl.int32)
        begin = (tile - q_begin // BLOCK_Q - row) * BLOCK_Q
    return tile, row, q_begin, q_len, seq_len, begin


@triton.jit
def _first_seen(position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Returns the first position that a token sees, as ``Reach.first``; ``WINDOW`` or ``CHUNK`` is not 0."""
    if CHUNK:
        return position - position % CHUNK
    else:
        return position - WINDOW + 1


@triton.jit
def _attend_tiles(
    acc, total, top, q, q_rest, position, end, first, last, keys, values, table,
    keys_block_stride, values_block_stride, scale, cap,
    BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
    REST: tl.constexpr, REST_PAD: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, SOFTCAP: tl.constexpr, MASKED: tl.constexpr,
    WIDEN: tl.constexpr, PRECISION: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """Online softmax over key tiles ``first`` to ``last - 1``.

    ``acc`` [rows, V_PAD], ``total`` and ``top`` [rows] are the weighted sum, the sum of weights and the largest score so
    far. Without ``MASKED`` every row sees every key; with it, keys from ``end`` on and their block ids are not read.
    With ``REST``, values are the first ``K_DIM`` numbers of keys and are read once for both products.
    """
    k_dims = tl.arange(0, K_PAD)
    v_dims = tl.arange(0, V_PAD)
    rest_dims = tl.arange(0, REST_PAD)
    # Block ids are read one tile ahead, so that the pipeline does not wait for them before it loads keys.
    key = first * BLOCK_N + tl.arange(0, BLOCK_N)
    block = tl.load(table + key // BLOCK_SIZE, mask=key < end, other=0)
    for tile in tl.range(first, last):
        key = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        here = key < end
        k_mask = here[:, None] & (k_dims < K_DIM)[None, :]
        v_mask = here[:, None] & (v_dims < V_DIM)[None, :]
        slot = key % BLOCK_SIZE
        k_begins = (block * keys_block_stride + slot * (K_DIM + REST))[:, None]
        v_places = (block * values_block_stride + slot * V_DIM)[:, None] + v_dims[None, :]
        k_places = k_begins + k_dims[None, :]
        if MASKED or K_DIM != K_PAD:
            k = tl.load(keys + k_places, mask=k_mask, other=0.0, eviction_policy=EVICTION)
        else:
            k = tl.load(keys + k_places, eviction_policy=EVICTION)
        if REST:
            rest_mask = here[:, None] & (rest_dims < REST)[None, :]
            rest_places = k_begins + K_DIM + rest_dims[None, :]
            k_rest = tl.load(keys + rest_places, mask=rest_mask, other=0.0, eviction_policy=EVICTION)
            v = k
        elif MASKED or V_DIM != V_PAD:
            v = tl.load(values + v_places, mask=v_mask, other=0.0, eviction_policy=EVICTION)
        else:
            v = tl.load(values + v_places, eviction_policy=EVICTION)
        next_key = key + BLOCK_N
        block = tl.load(table + next_key // BLOCK_SIZE, mask=next_key < end, other=0)
        if WIDEN:
            k = k.to(tl.float32)
            v = v.to(tl.float32)

        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if REST:
            scores = tl.dot(q_rest, tl.trans(k_rest.to(k.dtype)), scores, input_precision=PRECISION)
        scores = scores * scale
        if (
            SOFTCAP
        ):  # tanh(x) = 1 - 2 / (exp(2x) + 1), which is right at both infinities; scale and cap have the factors
            scores = cap * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
        if MASKED:
            visible = here[None, :] & (key[None, :] <= position[:, None])
            if WINDOW or CHUNK:
                visible = visible & (key[None, :] >= _first_seen(position, WINDOW, CHUNK)[:, None])
            scores = tl.where(visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        if MASKED:  # a row that has seen nothing yet must not subtract infinities
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
        else:
            base = new_top
        rescale = tl.exp2(top - base)
        weights = tl.exp2(scores - base[:, None])
        total = total * rescale + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
        top = new_top
    return acc, total, top


@triton.jit
def _attend_context(
    acc, total, top, queries, rest_queries, position, first_position, end, first, last, keys, values, table,
    keys_block_stride, values_block_stride, scale, cap,
    BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
    REST: tl.constexpr, REST_PAD: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, SOFTCAP: tl.constexpr,
    WIDEN: tl.constexpr, PRECISION: tl.constexpr, DECODE: tl.constexpr,
):  # fmt: skip
    """``_attend_tiles`` for key tiles ``first`` to ``last - 1``, with masks only where a token does not see a key."""
    if DECODE:  # one loop: memory is the bottleneck, not masks, and a second loop would have to fill its pipeline
        acc, total, top = _attend_tiles(
            acc, total, top, queries, rest_queries, position, end, first, last, keys, values, table,
            keys_block_stride, values_block_stride, scale, cap, BLOCK_N, BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD,
            REST, REST_PAD, WINDOW, CHUNK, SOFTCAP, True, WIDEN, PRECISION, "evict_first",
        )  # fmt: skip
    else:
        whole_first = first
        if WINDOW or CHUNK:  # tiles before this one have keys that the last token does not see
            seen = tl.maximum(_first_seen(end - 1, WINDOW, CHUNK), 0)
            whole_first = tl.minimum((seen + BLOCK_N - 1) // BLOCK_N, last)
            whole_first = tl.maximum(whole_first, first)
            acc, total, top = _attend_tiles(
                acc, total, top, queries, rest_queries, position, end, first, whole_first, keys, values, table,
                keys_block_stride, values_block_stride, scale, cap, BLOCK_N, BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD,
                REST, REST_PAD, WINDOW, CHUNK, SOFTCAP, True, WIDEN, PRECISION, "",
            )  # fmt: skip
        # Tiles from this one on have keys that the first token does not see.
        whole_last = tl.maximum(tl.minimum((first_position + 1) // BLOCK_N, last), whole_first)
        acc, total, top = _attend_tiles(
            acc, total, top, queries, rest_queries, position, end, whole_first, whole_last, keys, values, table,
            keys_block_stride, values_block_stride, scale, cap, BLOCK_N, BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD,
            REST, REST_PAD, WINDOW, CHUNK, SOFTCAP, False, WIDEN, PRECISION, "",
        )  # fmt: skip
        acc, total, top = _attend_tiles(
            acc, total, top, queries, rest_queries, position, end, whole_last, last, keys, values, table,
            keys_block_stride, values_block_stride, scale, cap, BLOCK_N, BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD,
            REST, REST_PAD, WINDOW, CHUNK, SOFTCAP, True, WIDEN, PRECISION, "",
        )  # fmt: skip
    return acc, total, top


# Parts of one packed upload, or of a graph's buffer: whether they begin at a multiple of 16 bytes depends on the step, and
# Triton compiles a kernel for either case. Their numbers are read one at a time, so nothing is lost without the case.
@triton.jit(
    do_not_specialize=["num_tokens", "num_rows", "table_stride"],
    do_not_specialize_on_alignment=["block_tables", "cu_seqlens_q", "seq_lens", "sinks"],
)
def attend_kernel(
    out, lse, q, keys, values, block_tables, cu_seqlens_q, seq_lens, sinks,
    num_tokens, num_rows, table_stride, scale, cap,
    q_token_stride, q_head_stride, keys_block_stride, keys_head_stride, values_block_stride, values_head_stride,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
    REST: tl.constexpr, REST_PAD: tl.constexpr,
    SPLITS: tl.constexpr, DECODE: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    WIDEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of one query tile, with ``HEADS`` query heads of one KV head, to one split of the context.

    Grid: query tiles (``cdiv(num_tokens, BLOCK_Q) + num_rows``; ``DECODE``: rows), parts of heads, splits.

    Shapes: ``q`` [tokens, heads, k_dim], ``keys`` [blocks, kv_heads, block_size, k_dim]; ``out`` [tokens, heads, v_dim], or
    with ``SPLITS`` > 1 float32 [splits, tokens, heads, v_dim], and ``lse`` [splits, tokens, heads] is the base-2 logarithm
    of the sum of each part's weights, -inf for an empty part, whose ``out`` is not written. The result of tokens after the
    last row is 0. With ``REST``, keys and queries have ``K_DIM + REST`` numbers, and values are the first ``K_DIM`` of the
    keys; ``values`` is not read (MLA's latents).

    ``DECODE``: no row has more than one token, and the token of row r is r. ``scale`` converts dot products to scores in
    base 2; with ``SOFTCAP``, to twice the argument of tanh in base 2, and ``cap`` converts the tanh to scores in base 2.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // HEADS
    PARTS: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    split = tl.program_id(2)
    kv_head = tl.program_id(1) // PARTS
    m = tl.arange(0, BLOCK_M)
    of_group = (tl.program_id(1) % PARTS) * HEADS + m % HEADS
    head = kv_head * GROUP + of_group
    v_dims = tl.arange(0, V_PAD)
    tile, row, q_begin, q_len, seq_len, begin = _place_tile(cu_seqlens_q, seq_lens, num_rows, BLOCK_Q, DECODE)

    if begin >= q_len:
        if DECODE or row == num_rows:  # after the last row: these tiles write zeros to the padding tokens
            if DECODE:
                token = tile + m // HEADS
                mine = (m // HEADS == 0) & (of_group < GROUP)
            else:
                token = (tile - num_rows) * BLOCK_Q + m // HEADS
                mine = (m // HEADS < BLOCK_Q) & (token >= q_begin) & (token < num_tokens) & (of_group < GROUP)
            place = token.to(tl.int64) * NUM_HEADS + head
            if SPLITS > 1:
                tl.store(lse + split * num_tokens.to(tl.int64) * NUM_HEADS + place, float("-inf"), mask=mine)
            else:
                places = place[:, None] * V_DIM + v_dims[None, :]
                tl.store(out + places, 0.0, mask=mine[:, None] & (v_dims < V_DIM)[None, :])
        return

    num_here = tl.minimum(q_len - begin, BLOCK_Q)
    mine = (m // HEADS < num_here) & (of_group < GROUP)
    token = (q_begin + begin + m // HEADS).to(tl.int64)
    place = token * NUM_HEADS + head
    if SPLITS > 1:
        place += split * num_tokens.to(tl.int64) * NUM_HEADS
    first_position = seq_len - q_len + begin
    end = first_position + num_here  # of the keys that any of these tokens see
    first = 0
    if WINDOW or CHUNK:
        first = tl.maximum(_first_seen(first_position, WINDOW, CHUNK), 0) // BLOCK_N
    last = (end + BLOCK_N - 1) // BLOCK_N
    if SPLITS > 1:
        length = (last - first + SPLITS - 1) // SPLITS
        first += split * length
        last = tl.minimum(first + length, last)
        if first >= last:
            tl.store(lse + place, float("-inf"), mask=mine)
            return

    position = first_position + m // HEADS
    k_dims = tl.arange(0, K_PAD)
    q_begins = q + (token * q_token_stride + head * q_head_stride)[:, None]
    queries = tl.load(q_begins + k_dims[None, :], mask=mine[:, None] & (k_dims < K_DIM)[None, :], other=0.0)
    rest_queries = queries
    if REST:
        rest_dims = tl.arange(0, REST_PAD)
        rest_mask = mine[:, None] & (rest_dims < REST)[None, :]
        rest_queries = tl.load(q_begins + K_DIM + rest_dims[None, :], mask=rest_mask, other=0.0)
    if WIDEN:
        queries = queries.to(tl.float32)
        rest_queries = rest_queries.to(tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, V_PAD), tl.float32)
    if SINKS:  # a score without a value, counted in the first split only; 1 / ln(2) converts it to base 2
        counts = mine & (tl.zeros_like(m) + split == 0)
        top = tl.load(sinks + head, mask=counts, other=float("-inf")).to(tl.float32) * 1.4426950408889634
        total = tl.where(counts, 1.0, 0.0)

    my_keys = keys + kv_head.to(tl.int64) * keys_head_stride
    my_values = values + kv_head.to(tl.int64) * values_head_stride
    table = block_tables + row.to(tl.int64) * table_stride
    acc, total, top = _attend_context(
        acc, total, top, queries, rest_queries, position, first_position, end, first, last, my_keys, my_values, table,
        keys_block_stride, values_block_stride, scale, cap, BLOCK_N, BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD,
        REST, REST_PAD, WINDOW, CHUNK, SOFTCAP, WIDEN, PRECISION, DECODE,
    )  # fmt: skip

    if SPLITS > 1:
        tl.store(lse + place, top + tl.log2(total), mask=mine)
    acc = (
        acc / tl.where(total == 0.0, 1.0, total)[:, None]
    )  # 0 if no key is visible: in this split, or in an unused row
    tl.store(
        out + place[:, None] * V_DIM + v_dims[None, :],
        acc.to(out.dtype.element_ty),
        mask=mine[:, None] & (v_dims < V_DIM)[None, :],
    )


@triton.jit(do_not_specialize=["num_tokens"])
def join_kernel(
    out, parts, lse, num_tokens,
    NUM_HEADS: tl.constexpr, V_DIM: tl.constexpr, BLOCK_V: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Combine the parts of split contexts: the mean of ``parts`` [splits, tokens, heads, v_dim], weighted by 2**``lse``.

    Grid: tokens, heads, pieces of ``BLOCK_V`` numbers of a head. Parts of weight 0 are not read.
    """
    place = tl.program_id(0).to(tl.int64) * NUM_HEADS + tl.program_id(1)
    dims = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    places = tl.arange(0, SPLITS) * num_tokens.to(tl.int64) * NUM_HEADS + place
    weight = tl.load(lse + places)
    top = tl.max(weight, 0)
    weight = tl.exp2(weight - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(weight, 0)
    part = tl.load(
        parts + places[:, None] * V_DIM + dims[None, :],
        mask=(weight > 0.0)[:, None] & (dims < V_DIM)[None, :],
        other=0.0,
    )
    mean = tl.sum(part * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + place * V_DIM + dims, mean.to(out.dtype.element_ty), mask=dims < V_DIM)
