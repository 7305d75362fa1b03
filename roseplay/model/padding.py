"""Batches of tokens that belong to no request, and padding: both are written to block 0."""

from __future__ import annotations

import numpy as np

from roseplay.model.batch import HostBatch


def dummy_batch(
    num_tokens: int, *, row_tokens: int, block_size: int, num_logits: int = 1, start: int = 0, token: int = 0
) -> HostBatch:
    """Returns a batch in block 0, which no request owns: to try a model, to warm it up, to record its steps.

    Args:
        row_tokens: tokens in every row but the last, which has the rest.
        num_logits: number of tokens, counted from the end, whose logits are wanted.
        start: position of each row's first token.
        token: token id of all tokens.
    """
    order = np.arange(num_tokens)
    cu_seqlens_q = np.minimum(np.arange(-(-num_tokens // row_tokens) + 1) * row_tokens, num_tokens)
    positions, seq_lens = start + order % row_tokens, start + np.diff(cu_seqlens_q)
    return HostBatch(
        input_ids=np.full(num_tokens, token),
        positions=positions,
        slot_mapping=positions % block_size,
        cu_seqlens_q=cu_seqlens_q,
        seq_lens=seq_lens,
        block_tables=np.zeros((len(seq_lens), -(-int(seq_lens.max()) // block_size)), np.int64),
        logits_rows=order[-num_logits:],
        state_slots=np.zeros(len(seq_lens), np.int64),
    )


def pad(host: HostBatch, *, num_tokens: int, num_rows: int, num_logits: int, block_size: int) -> HostBatch:
    """Returns the step padded to a size at which a graph was captured; padding writes only to block 0.

    If ``num_tokens == num_rows``, each padding row is a decode, a token that sees itself. Otherwise all padding tokens
    are in one row, and the rows after it are empty. ``block_tables`` gets no more rows than are read.
    """
    extra = num_tokens - host.num_tokens
    rows = num_rows - host.num_rows
    decodes = num_tokens == num_rows
    tables = host.block_tables
    if decodes:
        cu_seqlens_q, seq_lens = np.arange(num_rows + 1), np.ones(rows, np.int64)
        table_rows, columns = num_rows, tables.shape[1]
        slots = np.zeros(extra, np.int64)
    else:
        cu_seqlens_q = np.concatenate([host.cu_seqlens_q, np.full(rows, num_tokens)])
        seq_lens = np.zeros(rows, np.int64)
        seq_lens[: 1 if extra else 0] = extra
        table_rows, columns = host.num_rows + (extra > 0), max(tables.shape[1], -(-extra // block_size))
        slots = np.arange(extra) % block_size
    padded_tables = np.zeros((table_rows, columns), np.int64)
    padded_tables[: tables.shape[0], : tables.shape[1]] = tables
    zeros = np.zeros(extra, np.int64)
    return HostBatch(
        input_ids=np.concatenate([host.input_ids, zeros]),
        positions=np.concatenate([host.positions, zeros]),
        slot_mapping=np.concatenate([host.slot_mapping, slots]),
        cu_seqlens_q=cu_seqlens_q,
        seq_lens=np.concatenate([host.seq_lens, seq_lens]),
        block_tables=padded_tables,
        logits_rows=np.concatenate([host.logits_rows, np.zeros(num_logits - host.logits_rows.shape[0], np.int64)]),
        placeholder_positions=host.placeholder_positions,
        drawn_rows=host.drawn_rows,
        batched_append=host.batched_append,
        state_slots=np.concatenate([host.state_slots, np.zeros(num_rows - len(host.state_slots), np.int64)]),
    )
