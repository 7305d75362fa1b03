"""Computes the next token of the gated delta rule (Yang et al. 2024, arXiv:2412.06464) in one pass over the state.

To a decayed state S ``[k_dim, v_dim]``, the rule adds ``k (beta (v - S^T k))^T`` and returns ``S^T q`` of the result,
which is ``S^T q`` of the old state plus ``(k . q)`` times ``beta (v - S^T k)``: one pass of reading gives both
products.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import types

from roseplay.kernels.cpu.parallel import Work
from roseplay.kernels.cpu.rows import read_row, write_row
from roseplay.kernels.cpu.simd import array_at, kernel
from roseplay.kernels.cpu.states.layout import head_rows, item_of
from roseplay.kernels.state_functions import DeltaRule, check, gated_delta_rule

EPS = 1e-6  # in the norms of queries and keys


@gated_delta_rule
def recurrent_gated_delta_rule(rule: DeltaRule) -> torch.Tensor:
    """Apply the rule to one token of each row; inputs are float32 or bfloat16."""
    check(rule.query.shape[1] == 1, "more than one token")
    q, k, v, decay, gate = (head_rows(x) for x in (rule.query, rule.key, rule.value, rule.g, rule.beta))
    v_heads, group, k_dim, v_dim = rule.sizes
    out = torch.empty(rule.value.shape, dtype=q.dtype)
    compute = _update(item_of(q), item_of(gate), rule.by_channel, group, k_dim, v_dim)
    arguments = [x for tensor in (q, k, v, decay, gate) for x in (tensor.data_ptr(), tensor.stride(0))]
    arguments += [rule.states.tensor.data_ptr(), rule.states.slots.data_ptr(), out.data_ptr(), v_heads]
    Work(compute, arguments, len(q) * v_heads, (rule.states,)).run()
    return out


@cache
def _update(item: Any, gate_item: Any, by_channel: bool, group: int, k_dim: int, v_dim: int) -> Any:
    bf16, gate_bf16 = item is types.uint16, gate_item is types.uint16
    decays, scale = k_dim if by_channel else 1, np.float32(1 / math.sqrt(k_dim))

    def recurrent_gated_delta_rule(args, piece):
        v_heads = args[14]
        row, head = piece // v_heads, piece % v_heads
        slot = array_at(args[12], types.int64, row, 1)[0]
        q, k, v = np.empty(k_dim, np.float32), np.empty(k_dim, np.float32), np.empty(v_dim, np.float32)
        read_row(array_at(args[1], item, row * args[2] + head // group * k_dim, k_dim), q, bf16)
        read_row(array_at(args[3], item, row * args[4] + head // group * k_dim, k_dim), k, bf16)
        read_row(array_at(args[5], item, row * args[6] + head * v_dim, v_dim), v, bf16)
        g = array_at(args[7], types.float32, row * args[8] + head * decays, decays)
        beta = np.empty(1, np.float32)
        read_row(array_at(args[9], gate_item, row * args[10] + head, 1), beta, gate_bf16)
        squares_q, squares_k, both = np.float32(0), np.float32(0), np.float32(0)
        for i in range(k_dim):
            squares_q += q[i] * q[i]
            squares_k += k[i] * k[i]
        norm_q = np.float32(1) / np.float32(math.sqrt(squares_q + np.float32(EPS))) * scale
        norm_k = np.float32(1) / np.float32(math.sqrt(squares_k + np.float32(EPS)))
        for i in range(k_dim):
            q[i] *= norm_q
            k[i] *= norm_k
            both += q[i] * k[i]
        decay = np.empty(k_dim, np.float32)
        if by_channel:
            for i in range(k_dim):
                decay[i] = math.exp(g[i])
        else:
            decay[:] = np.float32(math.exp(g[0]))
        state = array_at(args[11], types.float32, (slot * v_heads + head) * k_dim * v_dim, k_dim * v_dim)
        known, out = np.zeros(v_dim, np.float32), np.zeros(v_dim, np.float32)
        for i in range(k_dim):
            by_k, by_q = k[i] * decay[i], q[i] * decay[i]
            for j in range(v_dim):
                known[j] += state[i * v_dim + j] * by_k
                out[j] += state[i * v_dim + j] * by_q
        for j in range(v_dim):
            v[j] = (v[j] - known[j]) * beta[0]
            out[j] += both * v[j]
        for i in range(k_dim):
            for j in range(v_dim):
                state[i * v_dim + j] = state[i * v_dim + j] * decay[i] + k[i] * v[j]
        write_row(out, array_at(args[13], item, (row * v_heads + head) * v_dim, v_dim), bf16)

    return kernel(recurrent_gated_delta_rule)
