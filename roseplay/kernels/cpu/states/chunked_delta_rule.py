"""Computes prompts of the gated delta rule (Yang et al. 2024, arXiv:2412.06464) in chunks of 32 tokens.

The state S ``[k_dim, v_dim]`` before a chunk gives every token of it the products ``S^T k`` and ``S^T q``. What the tokens
add to the state follows from those and from the products of the chunk's keys, by forward substitution: token i adds
``k_i u_i^T`` with ``u_i = beta_i (v_i - d_i S^T k_i - sum_j d_ij (k_i . k_j) u_j)``, where d_i is the decay from the begin
of the chunk to token i, and d_ij that from token j. A token takes 3 ``k_dim v_dim`` multiplications with the state, as
token by token, but in products of matrices, which read the state once per chunk.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.parallel import Work
from roseplay.kernels.cpu.rows import read_row, write_row
from roseplay.kernels.cpu.simd import address, array_at, kernel
from roseplay.kernels.cpu.states.chunks import (
    CHUNK,
    VALUES,
    add_to_state,
    check_products,
    decay_products,
    from_strips,
    multiply,
    read_state,
    to_decays,
    to_strips,
    write_state,
)
from roseplay.kernels.cpu.states.delta_rule import EPS
from roseplay.kernels.cpu.states.layout import addresses, head_rows, item_of
from roseplay.kernels.cpu.tiles import STRIP
from roseplay.kernels.state_functions import DeltaRule, check, gated_delta_rule


@gated_delta_rule
def chunk_gated_delta_rule(rule: DeltaRule) -> torch.Tensor:
    """Apply the rule to the rows of a packed batch; inputs are float32 or bfloat16."""
    check_products()
    check(len(rule.query) == 1 and not rule.by_channel, "several batches, or decays of each channel")
    q, k, v, decay, gate = (head_rows(x[0]) for x in (rule.query, rule.key, rule.value, rule.g, rule.beta))
    v_heads, group, k_dim, v_dim = rule.sizes
    out = torch.empty(rule.value.shape, dtype=q.dtype)
    rows, places = addresses(rule.states)
    compute = _prefill(item_of(q), item_of(gate), group, k_dim, v_dim)
    arguments = [x for tensor in (q, k, v, decay, gate) for x in (tensor.data_ptr(), tensor.stride(0))]
    arguments += [rule.states.tensor.data_ptr(), *places, out.data_ptr(), v_heads]
    Work(compute, arguments, rows * v_heads, (rule,)).run()
    return out


@numba.njit(inline="always")
def _normalise(x, scale):
    squares = np.float32(0)
    for i in range(len(x)):
        squares += x[i] * x[i]
    factor = scale / np.float32(math.sqrt(squares + np.float32(EPS)))
    for i in range(len(x)):
        x[i] *= factor


@numba.njit(inline="always")
def _compute_strip(both, state, products, gates, decays, values, results, known, zeros, count, k_dim):
    """Replace a strip of the tokens' values by what they add to the state, and write the strip of their results.

    Args:
        both: keys, then queries, each ``[count, k_dim]``; ``products``: those of ``both`` with the keys, decayed.
        state: a strip of it before the chunk; ``known`` is overwritten by its products with ``both``.
    """
    multiply(
        address(both, 0), k_dim, address(state, 0), address(zeros, 0), 0, k_dim,
        address(known, 0), STRIP, 2 * count, False,
    )  # fmt: skip
    for i in range(count):
        for d in range(i * STRIP, (i + 1) * STRIP):
            values[d] = gates[i] * (values[d] - decays[i] * known[d])
            known[count * STRIP + d] *= decays[i]
    for i in range(1, count):  # forward substitution
        multiply(
            address(products, i * CHUNK), CHUNK, address(values, 0), address(values, i * STRIP), 0, i,
            address(values, i * STRIP), STRIP, 1, False,
        )  # fmt: skip
    multiply(
        address(products, count * CHUNK), CHUNK, address(values, 0), address(known, count * STRIP), STRIP, count,
        address(results, 0), STRIP, count, True,
    )  # fmt: skip


@cache
def _prefill(item: Any, gate_item: Any, group: int, k_dim: int, v_dim: int) -> Any:
    bf16, gate_bf16 = item is types.uint16, gate_item is types.uint16
    scale, one = np.float32(1 / math.sqrt(k_dim)), np.float32(1)
    parts, part_len = -(-v_dim // STRIP), k_dim * STRIP

    def chunk_gated_delta_rule(args, piece):
        v_heads = args[16]
        row, head = piece // v_heads, piece % v_heads
        slot, ends = array_at(args[12], types.int64, row, 1)[0], array_at(args[13], types.int64, row, 2)
        begin, end = ends[0], ends[1]
        stored = array_at(args[11], types.float32, (slot * v_heads + head) * k_dim * v_dim, k_dim * v_dim)
        state = np.zeros(parts * part_len, np.float32)
        if array_at(args[14], types.int64, row, 1)[0] > end - begin:
            read_state(stored, state, k_dim, v_dim, False)
        both, keys = np.empty(2 * CHUNK * k_dim, np.float32), np.zeros(k_dim * CHUNK, np.float32)
        products, known = np.empty(2 * CHUNK * CHUNK, np.float32), np.empty(2 * VALUES, np.float32)
        values, results = np.zeros(parts * VALUES, np.float32), np.empty(parts * VALUES, np.float32)
        sums, decays = np.zeros(CHUNK, np.float32), np.zeros(CHUNK, np.float32)
        between, gates = np.zeros(CHUNK, np.float32), np.zeros(CHUNK, np.float32)
        v, zeros = np.empty(v_dim, np.float32), np.zeros(STRIP, np.float32)
        for first in range(begin, end, CHUNK):
            count = min(CHUNK, end - first)
            for i in range(count):  # keys, then queries; and transposed keys
                token, k = first + i, both[i * k_dim : (i + 1) * k_dim]
                q = both[(count + i) * k_dim : (count + i + 1) * k_dim]
                read_row(array_at(args[3], item, token * args[4] + head // group * k_dim, k_dim), k, bf16)
                read_row(array_at(args[1], item, token * args[2] + head // group * k_dim, k_dim), q, bf16)
                read_row(array_at(args[5], item, token * args[6] + head * v_dim, v_dim), v, bf16)
                read_row(array_at(args[9], gate_item, token * args[10] + head, 1), gates[i : i + 1], gate_bf16)
                _normalise(k, one)
                _normalise(q, scale)
                for d in range(k_dim):
                    keys[d * CHUNK + i] = k[d]
                to_strips(v, values, i)
                sums[i] = array_at(args[7], types.float32, token * args[8] + head, 1)[0]
                sums[i] += sums[i - 1] if i else np.float32(0)
            to_decays(sums, count, decays)
            multiply(
                address(both, 0), k_dim, address(keys, 0), address(zeros, 0), 0, k_dim,
                address(products, 0), CHUNK, 2 * count, False,
            )  # fmt: skip
            for i in range(count):
                decay_products(products, i, sums, i, -gates[i], i, between)
                decay_products(products, count + i, sums, i, one, i + 1, between)
            for part in range(parts):
                strip = slice(part * VALUES, (part + 1) * VALUES)
                _compute_strip(
                    both, state[part * part_len :], products, gates, decays, values[strip], results[strip], known, zeros,
                    count, k_dim,
                )  # fmt: skip
            add_to_state(state, keys, values, sums, count, k_dim, parts, between)
            for i in range(count):
                from_strips(results, i, v)
                write_row(v, array_at(args[15], item, ((first + i) * v_heads + head) * v_dim, v_dim), bf16)
        if end > begin:
            write_state(state, stored, k_dim, v_dim, False)

    return kernel(chunk_gated_delta_rule)
