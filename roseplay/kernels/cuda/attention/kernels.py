"""Paged attention in Triton: one kernel for prompts, decodes or both together.

After FlashAttention-2 (online softmax over tiles), FlashDecoding (split contexts), PagedAttention (block tables) and the
unified kernel of vLLM (ragged rows found by binary search in a grid of a fixed size). Scores are scaled to base 2, because
the hardware's exponential is 2**x. Of the programs that share a context, the one that ends last joins their results.
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
def _place_tile(plan, cu_seqlens_q, seq_lens, num_rows, BLOCK_Q: tl.constexpr, DECODE: tl.constexpr):
    """Returns this program's query tile and split of the context: ``row, q_begin, q_len, seq_len, begin, split, splits``.

    The tile begins at token ``begin`` of the ``q_len`` tokens of ``row``, which begin at token ``q_begin`` of the batch and
    are the last of a context of ``seq_len`` tokens. ``q_len`` is 0 for padding, ``row`` -1 for a program without work.
    """
    if DECODE:  # one token a row, or none: no need to search
        row = tl.load(plan + tl.program_id(0))
        split = tl.load(plan + tl.num_programs(0) + tl.program_id(0))
        splits = tl.load(plan + 2 * tl.num_programs(0) + tl.program_id(0))
        here = tl.maximum(row, 0)
        q_begin = here
        q_len = (tl.load(cu_seqlens_q + here + 1) - tl.load(cu_seqlens_q + here)).to(tl.int32)
        seq_len = tl.load(seq_lens + here).to(tl.int32)
        begin = here - q_begin
    else:  # the longest contexts first: they are those of the last tiles of a prompt
        tile = tl.num_programs(0) - 1 - tl.program_id(0)
        split = tl.program_id(2)
        splits = tl.num_programs(2)
        row = _find_row(cu_seqlens_q, tile, num_rows, BLOCK_Q)
        q_begin = tl.load(cu_seqlens_q + row).to(tl.int32)
        q_end = tl.load(cu_seqlens_q + tl.minimum(row + 1, num_rows)).to(tl.int32)
        q_len = q_end - q_begin
        seq_len = tl.load(seq_lens + tl.minimum(row, num_rows - 1)).to(tl.int32)
        begin = (tile - q_begin // BLOCK_Q - row) * BLOCK_Q
    return row, q_begin, q_len, seq_len, begin, split, splits


@triton.jit
def _first_seen(position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Returns the first position that a token sees, as ``Reach.first``; ``WINDOW`` or ``CHUNK`` is not 0."""
    if CHUNK:
        return position - position % CHUNK
    else:
        return position - WINDOW + 1


@triton.jit
def _attend_tiles(
    acc, total, top, q, q_rest, position, end, first, last, keys, values, key_scales, value_scales, table,
    keys_block_stride, values_block_stride, scales_block_stride, scale, cap,
    BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
    REST: tl.constexpr, REST_PAD: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, SOFTCAP: tl.constexpr, MASKED: tl.constexpr,
    WIDEN: tl.constexpr, PRECISION: tl.constexpr, INT8: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """Online softmax over key tiles ``first`` to ``last - 1``.

    ``acc`` [rows, V_PAD], ``total`` and ``top`` [rows] are the weighted sum, the sum of weights and the largest score so
    far. Without ``MASKED`` every row sees every key; with it, keys from ``end`` on and their block ids are not read.
    With ``INT8``, the scales of keys and values multiply scores and weights, and codes are exact in the queries' dtype.
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
        if INT8:
            scales_at = block * scales_block_stride + slot
            k_scale = tl.load(key_scales + scales_at, mask=here, other=0.0, eviction_policy=EVICTION)
            v_scale = tl.load(value_scales + scales_at, mask=here, other=0.0, eviction_policy=EVICTION)
            k = k.to(q.dtype)
            v = v.to(q.dtype)
        next_key = key + BLOCK_N
        block = tl.load(table + next_key // BLOCK_SIZE, mask=next_key < end, other=0)
        if WIDEN:
            k = k.to(tl.float32)
            v = v.to(tl.float32)

        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if REST:
            scores = tl.dot(q_rest, tl.trans(k_rest.to(k.dtype)), scores, input_precision=PRECISION)
        if INT8:
            scores = scores * k_scale[None, :]
        scores = scores * scale
        if SOFTCAP:  # tanh(x) = 1 - 2 / (exp(2x) + 1), right at both infinities; scale and cap have the factors
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
        if INT8:
            weights = weights * v_scale[None, :]
        acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
        top = new_top
    return acc, total, top


@triton.jit
def _attend_context(
    acc, total, top, queries, rest_queries, position, first_position, end, first, last, keys, values, key_scales,
    value_scales, table, keys_block_stride, values_block_stride, scales_block_stride, scale, cap,
    BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
    REST: tl.constexpr, REST_PAD: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, SOFTCAP: tl.constexpr,
    WIDEN: tl.constexpr, PRECISION: tl.constexpr, INT8: tl.constexpr, DECODE: tl.constexpr,
):  # fmt: skip
    """``_attend_tiles`` for key tiles ``first`` to ``last - 1``, with masks only where a token does not see a key.

    Decodes have one loop: memory is the bottleneck, not masks, and a second loop would have to fill its pipeline.
    """
    whole_first = first
    whole_last = first
    if not DECODE:
        if WINDOW or CHUNK:  # tiles before this one have keys that the last token does not see
            seen = tl.maximum(_first_seen(end - 1, WINDOW, CHUNK), 0)
            whole_first = tl.minimum((seen + BLOCK_N - 1) // BLOCK_N, last)
            whole_first = tl.maximum(whole_first, first)
        # Tiles from this one on have keys that the first token does not see.
        whole_last = tl.maximum(tl.minimum((first_position + 1) // BLOCK_N, last), whole_first)
    for third in tl.static_range(2 if DECODE else 0 if WINDOW or CHUNK else 1, 3):
        begin = first if third == 0 else whole_first if third == 1 else whole_last
        stop = whole_first if third == 0 else whole_last if third == 1 else last
        acc, total, top = _attend_tiles(
            acc, total, top, queries, rest_queries, position, end, begin, stop, keys, values, key_scales, value_scales,
            table, keys_block_stride, values_block_stride, scales_block_stride, scale, cap,
            BLOCK_N, BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD, REST, REST_PAD, WINDOW, CHUNK, SOFTCAP, third != 1,
            WIDEN, PRECISION, INT8, "evict_first" if DECODE else "",
        )  # fmt: skip
    return acc, total, top


@triton.jit
def _store(out, mean, token, head, mine, NUM_HEADS: tl.constexpr, V_DIM: tl.constexpr, V_PAD: tl.constexpr):
    """Write results of heads of tokens to ``out`` [tokens, NUM_HEADS, V_DIM]."""
    dims = tl.arange(0, V_PAD)
    places = out + (token.to(tl.int64) * NUM_HEADS + head)[:, None] * V_DIM + dims[None, :]
    tl.store(places, mean.to(out.dtype.element_ty), mask=mine[:, None] & (dims < V_DIM)[None, :])


@triton.jit
def _join(
    out, parts, lse, first, stride, splits, first_token, num_here, first_head, num_heads,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, JOIN: tl.constexpr,
    V_DIM: tl.constexpr, V_PAD: tl.constexpr, READS: tl.constexpr,
):  # fmt: skip
    """Write the mean of the parts ``first``, ``first + stride``, ..., weighted by 2**``lse``; in their order, whichever of
    them was written last. ``READS`` parts are read at once."""
    WIDTH: tl.constexpr = V_PAD if V_PAD * JOIN <= 8192 else 8192 // JOIN  # numbers of a head that registers hold
    m = tl.arange(0, JOIN)
    mine = (m // HEADS < num_here) & (m % HEADS < num_heads)
    target = (first_token + m // HEADS).to(tl.int64) * NUM_HEADS + first_head + m % HEADS
    for begin in tl.range(0, V_PAD, WIDTH):
        dims = begin + tl.arange(0, WIDTH)
        mask = mine[:, None] & (dims < V_DIM)[None, :]
        top = tl.full((JOIN,), float("-inf"), tl.float32)
        total = tl.zeros((JOIN,), tl.float32)
        acc = tl.zeros((JOIN, WIDTH), tl.float32)
        for split in tl.range(0, splits, loop_unroll_factor=READS):
            place = (first + split * stride) * ROWS + m
            weight = tl.load(lse + place, mask=mine, other=float("-inf"))
            part = tl.load(parts + place[:, None] * V_DIM + dims[None, :], mask=mask, other=0.0)
            new_top = tl.maximum(top, weight)
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
            rescale = tl.exp2(top - base)
            weight = tl.exp2(weight - base)
            total = total * rescale + weight
            acc = acc * rescale[:, None] + part * weight[:, None]
            top = new_top
        mean = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + target[:, None] * V_DIM + dims[None, :], mean.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _share(
    out, parts, lse, arrived, mean, log_total, row, split, splits, first_token, num_here, kv_head, head_part,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, JOIN: tl.constexpr,
    BLOCK_M: tl.constexpr, V_DIM: tl.constexpr, V_PAD: tl.constexpr, DECODE: tl.constexpr,
):  # fmt: skip
    """Write a part of a context that several programs share; the one that arrives last joins all."""
    if DECODE:
        stride = tl.num_programs(1).to(tl.int64)
        first = (tl.program_id(0) - split) * stride + tl.program_id(1)
        counter = arrived + row * tl.num_programs(1) + tl.program_id(1)
    else:
        stride = tl.num_programs(0).to(tl.int64) * tl.num_programs(1)
        first = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        counter = arrived + first
    m = tl.arange(0, BLOCK_M)
    place = (first + split * stride) * ROWS + m
    _store(parts, mean, place, 0, m < ROWS, 1, V_DIM, V_PAD)
    tl.store(lse + place, log_total, mask=m < ROWS)
    tl.debug_barrier()  # the other threads' parts are written before one thread says so
    if tl.atomic_add(counter, 1, sem="acq_rel") == splits - 1:
        tl.debug_barrier()
        _join(
            out, parts, lse, first, stride, splits, first_token, num_here, kv_head * GROUP + head_part * HEADS,
            tl.minimum(HEADS, GROUP - head_part * HEADS), NUM_HEADS, HEADS, ROWS, JOIN, V_DIM, V_PAD, 4 if DECODE else 1,
        )  # fmt: skip
        tl.store(counter, 0)


# Parts of one packed upload, or of a graph's buffer: whether they begin at a multiple of 16 bytes depends on the step, and
# Triton compiles a kernel for either case. Their numbers are read one at a time, so nothing is lost without the case.
@triton.jit(
    do_not_specialize=["num_tokens", "num_rows", "table_stride"],
    do_not_specialize_on_alignment=["block_tables", "cu_seqlens_q", "seq_lens", "sinks"],
)
def attend_kernel(
    out, parts, lse, arrived, plan, q, keys, values, key_scales, value_scales, block_tables, cu_seqlens_q, seq_lens, sinks,
    num_tokens, num_rows, table_stride, scale, cap,
    q_token_stride, q_head_stride, keys_block_stride, keys_head_stride, values_block_stride, values_head_stride,
    scales_block_stride, NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
    REST: tl.constexpr, REST_PAD: tl.constexpr, ROWS: tl.constexpr, JOIN: tl.constexpr, DECODE: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    WIDEN: tl.constexpr, PRECISION: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """Attention of one query tile, with ``HEADS`` query heads of one KV head, to one split of the context.

    Grid: query tiles (``cdiv(num_tokens, BLOCK_Q) + num_rows``), parts of heads, splits; with ``DECODE``, programs of
    ``plan`` (see ``plan_kernel``), parts of heads.

    Shapes: ``q`` [tokens, heads, k_dim], ``keys`` [blocks, kv_heads, block_size, k_dim]; ``out`` [tokens, heads, v_dim]. The
    result of tokens after the last row is 0. With ``REST``, keys and queries have ``K_DIM + REST`` numbers, and values are
    the first ``K_DIM`` of the keys; ``values`` is not read (MLA's latents). With ``INT8``, keys and values are codes, and
    their scales are float32 [blocks, kv_heads, block_size], see ``KVCache``; without, these are not read.

    Where several programs share a context, each writes its part, float32 ``parts`` [programs, ROWS, v_dim], and the base-2
    logarithm of the sum of its weights, ``lse`` [programs, ROWS], and counts itself in ``arrived``, int32, which is 0 before
    and after the launch. ``ROWS`` are used of ``JOIN``, a power of 2.

    ``DECODE``: no row has more than one token, and the token of row r is r. ``scale`` converts dot products to scores in
    base 2; with ``SOFTCAP``, to twice the argument of tanh in base 2, and ``cap`` converts the tanh to scores in base 2.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // HEADS
    PARTS: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = tl.program_id(1) // PARTS
    head_part = tl.program_id(1) % PARTS
    m = tl.arange(0, BLOCK_M)
    of_group = head_part * HEADS + m % HEADS
    head = kv_head * GROUP + of_group
    row, q_begin, q_len, seq_len, begin, split, splits = _place_tile(
        plan, cu_seqlens_q, seq_lens, num_rows, BLOCK_Q, DECODE
    )
    if row < 0:
        return
    if begin >= q_len:
        if split == 0 and (DECODE or row == num_rows):  # after the last row: these tiles write zeros to padding tokens
            if DECODE:
                token = row + m // HEADS
                mine = (m // HEADS == 0) & (of_group < GROUP)
            else:
                token = (tl.num_programs(0) - 1 - tl.program_id(0) - num_rows) * BLOCK_Q + m // HEADS
                mine = (m // HEADS < BLOCK_Q) & (token >= q_begin) & (token < num_tokens) & (of_group < GROUP)
            _store(out, tl.zeros((BLOCK_M, V_PAD), tl.float32), token, head, mine, NUM_HEADS, V_DIM, V_PAD)
        return

    num_here = tl.minimum(q_len - begin, BLOCK_Q)
    mine = (m // HEADS < num_here) & (of_group < GROUP)
    token = (q_begin + begin + m // HEADS).to(tl.int64)
    first_position = seq_len - q_len + begin
    end = first_position + num_here  # of the keys that any of these tokens see
    first = 0
    if WINDOW or CHUNK:
        first = tl.maximum(_first_seen(first_position, WINDOW, CHUNK), 0) // BLOCK_N
    last = (end + BLOCK_N - 1) // BLOCK_N
    length = (last - first + splits - 1) // splits
    first += split * length
    last = tl.minimum(first + length, last)

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
    my_key_scales = key_scales + kv_head * BLOCK_SIZE
    my_value_scales = value_scales + kv_head * BLOCK_SIZE
    table = block_tables + row.to(tl.int64) * table_stride
    acc, total, top = _attend_context(
        acc, total, top, queries, rest_queries, position, first_position, end, first, last, my_keys, my_values,
        my_key_scales, my_value_scales, table, keys_block_stride, values_block_stride, scales_block_stride, scale, cap,
        BLOCK_N, BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD, REST, REST_PAD, WINDOW, CHUNK, SOFTCAP, WIDEN, PRECISION, INT8,
        DECODE,
    )  # fmt: skip

    # 0 if no key is visible: in this split, or in an unused row
    mean = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    if splits == 1:
        _store(out, mean, token, head, mine, NUM_HEADS, V_DIM, V_PAD)
    else:
        _share(
            out, parts, lse, arrived, mean, top + tl.log2(total), row, split, splits, q_begin + begin, num_here,
            kv_head, head_part, NUM_HEADS, GROUP, HEADS, ROWS, JOIN, BLOCK_M, V_DIM, V_PAD, DECODE,
        )  # fmt: skip
