"""A step's tokens, packed into one row: what goes into the model, and where its keys and values go."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from roseplay.core.step import Step, StepEntry

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class PagedBatch:
    """Tokens of several requests one after the other. A *row* is an entry that computes tokens.

    Tensors are int64 on the model's device; the arrays with the same meaning beside them are the host's copies,
    so that nobody has to ask the device for them.

    Attributes:
        input_ids, positions: ``[tokens]``.
        slot_mapping: ``[tokens]``: ``block * block_size + offset`` of each token's key and value.
        cu_seqlens_q: ``[rows + 1]``: row r's tokens are ``cu_seqlens_q[r] : cu_seqlens_q[r + 1]``.
        seq_lens: ``[rows]``: tokens of the request that are in the cache once this step has appended.
        block_tables: ``[rows, most blocks]``, padded with 0.
        logits_rows: ``[wanted]``: tokens whose logits are wanted (the last ones of some rows).
        batched_append: one write a layer; else one a row and layer.
        memo: what a backend worked out in one layer and needs in the others.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    logits_rows: torch.Tensor
    host_cu_seqlens_q: Ints
    host_seq_lens: Ints
    host_block_tables: Ints
    batched_append: bool = True
    memo: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def num_rows(self) -> int:
        return self.host_seq_lens.shape[0]


def build_batch(
    step: Step,
    wanted: list[int],
    *,
    num_blocks: int,
    block_size: int,
    vocab_size: int,
    device: torch.device,
) -> PagedBatch | None:
    """Pack a step's entries; ``None`` when none of them computes a token.

    Args:
        wanted: indices of entries whose last token's logits are wanted, each once; ``logits_rows`` is in their order.

    Raises ``ValueError`` when the step does not fit together: tokens, blocks or slots that do not exist, or two
    tokens for one slot.
    """
    entries = [entry for entry in step.entries if entry.num_tokens]
    if not entries:
        return None
    for entry in entries:
        _check_entry(entry, block_size)
    starts = np.array([entry.start for entry in entries], np.int64)
    counts = np.array([entry.num_tokens for entry in entries], np.int64)
    seq_lens = starts + counts
    cu_seqlens_q = np.zeros(len(entries) + 1, np.int64)
    np.cumsum(counts, out=cu_seqlens_q[1:])
    num_tokens = int(cu_seqlens_q[-1])

    input_ids = np.fromiter(
        chain.from_iterable(e.request.token_ids[e.start : e.start + e.num_tokens] for e in entries),
        np.int64,
        num_tokens,
    )
    if input_ids.min() < 0 or input_ids.max() >= vocab_size:
        raise ValueError(
            f"a token id is outside the vocabulary of {vocab_size}: {input_ids.min()} to {input_ids.max()}"
        )

    block_tables = _pack_block_tables(entries, seq_lens, num_blocks, block_size)
    row_of_token = np.repeat(np.arange(len(entries)), counts)
    positions = np.arange(num_tokens) + (starts - cu_seqlens_q[:-1])[row_of_token]
    blocks = block_tables[row_of_token, positions // block_size]
    slot_mapping = blocks * block_size + positions % block_size
    if np.unique(slot_mapping).size != num_tokens:
        raise ValueError(f"two tokens of step {step.step_id} go into one slot of the KV cache")

    last_token = dict(zip((id(entry) for entry in entries), (cu_seqlens_q[1:] - 1).tolist(), strict=True))
    logits_rows = np.array([last_token[id(step.entries[i])] for i in wanted], np.int64)

    def to_device(array: Ints) -> torch.Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return PagedBatch(
        input_ids=to_device(input_ids),
        positions=to_device(positions),
        slot_mapping=to_device(slot_mapping),
        cu_seqlens_q=to_device(cu_seqlens_q),
        seq_lens=to_device(seq_lens),
        block_tables=to_device(block_tables),
        logits_rows=to_device(logits_rows),
        host_cu_seqlens_q=cu_seqlens_q,
        host_seq_lens=seq_lens,
        host_block_tables=block_tables,
        batched_append=step.batched_append,
    )


def _check_entry(entry: StepEntry, block_size: int) -> None:
    request, end = entry.request, entry.start + entry.num_tokens
    if entry.start < 0 or entry.num_tokens < 0 or end > len(request.token_ids):
        raise ValueError(
            f"{request}: tokens {entry.start} to {end} are to be computed, it has {len(request.token_ids)}"
        )
    if len(request.block_table) * block_size < end:
        raise ValueError(f"{request}: {end} tokens do not fit its {len(request.block_table)} blocks of {block_size}")


def _pack_block_tables(entries: list[StepEntry], seq_lens: Ints, num_blocks: int, block_size: int) -> Ints:
    """``[rows, most blocks]``, only the blocks that hold ``seq_lens`` tokens, the rest 0."""
    used = -(-seq_lens // block_size)
    tables = np.zeros((len(entries), int(used.max())), np.int64)
    lengths = used.tolist()
    flat = np.fromiter(
        chain.from_iterable(e.request.block_table[:n] for e, n in zip(entries, lengths, strict=True)),
        np.int64,
        sum(lengths),
    )
    if flat.min() < 1 or flat.max() >= num_blocks:
        raise ValueError(f"a block table names a block outside 1 to {num_blocks - 1}: {flat.min()} to {flat.max()}")
    tables[np.arange(tables.shape[1]) < used[:, None]] = flat
    return tables
