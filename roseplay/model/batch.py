"""A step's tokens packed into one row: the model's input, and where its keys and values are stored."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from roseplay.core.request import PLACEHOLDER
from roseplay.core.step import Step, StepEntry
from roseplay.model.upload import pack_ints

Ints = npt.NDArray[np.int64]
_FEW = 256  # numbers; see ``_extremes``


@dataclass(slots=True)
class Drawn:
    """Tokens drawn by the previous step that are still on the device: the next step may be packed before they are read."""

    tokens: torch.Tensor  # the tokens, int64 ``[drawn]``; negative where nothing could be drawn
    row_of: Mapping[int, int]  # the row in ``tokens`` of each request id

    def select(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the tokens of some rows; token 0, with which a request runs on until the host ends it, if it has none."""
        return self.tokens.index_select(0, rows).clamp_(min=0)


@dataclass(slots=True)
class PagedBatch:
    """Tokens of several requests, concatenated. A *row* is an entry of the step that computes tokens.

    Tensors are int64 on the model's device; the arrays named ``host_...`` are copies on the host, so that reading them does
    not wait for the device.
    """

    input_ids: torch.Tensor  # ``[tokens]``
    positions: torch.Tensor
    slot_mapping: torch.Tensor  # ``[tokens]``: ``block * block_size + offset`` of each token's key and value
    cu_seqlens_q: torch.Tensor  # ``[rows + 1]``: row r's tokens are ``cu_seqlens_q[r] : cu_seqlens_q[r + 1]``
    seq_lens: torch.Tensor  # ``[rows]``: tokens of the request in the cache after this step's append
    block_tables: torch.Tensor  # ``[rows, most blocks]``, padded with 0
    # ``[wanted]``: tokens whose logits are wanted (the last ones of rows); None for all tokens.
    logits_rows: torch.Tensor | None
    host_cu_seqlens_q: Ints
    host_seq_lens: Ints
    host_block_tables: Ints
    batched_append: bool = True  # keys and values are written once per layer, else once per row and layer
    # ``[rows]``: the state slot of each row's request, 0 for a model without recurrent layers.
    host_state_slots: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    # Values that a backend computes in one layer and reuses in the other layers.
    memo: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def num_rows(self) -> int:
        return self.seq_lens.shape[0]


@dataclass(slots=True)
class HostBatch:
    """A ``PagedBatch`` on the host; attributes of the same name mean the same."""

    input_ids: Ints
    positions: Ints
    slot_mapping: Ints
    cu_seqlens_q: Ints
    seq_lens: Ints
    block_tables: Ints
    logits_rows: Ints
    # Indices in ``input_ids`` of tokens that the previous step draws and the host does not know yet (``input_ids`` has
    # 0 there).
    placeholder_positions: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    drawn_rows: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # their rows in ``Drawn.tokens``
    batched_append: bool = True
    cuda_graphs: bool = True  # whether the step may be replayed as a CUDA graph
    state_slots: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # as ``PagedBatch.host_state_slots``

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def num_rows(self) -> int:
        return self.seq_lens.shape[0]

    @property
    def decodes_only(self) -> bool:
        """Whether every row is a single token."""
        return self.num_tokens == self.num_rows

    @property
    def continues_by_one(self) -> bool:
        """Whether every row is a single token that is not its request's first: it has a recurrent state to go on from."""
        return self.decodes_only and int(self.seq_lens.min()) > 1

    def arrays(self) -> list[Ints]:
        """Returns the arrays that every model reads, in the order in which they are copied to the device."""
        return [
            self.input_ids, self.positions, self.slot_mapping, self.cu_seqlens_q, self.seq_lens, self.logits_rows,
            self.block_tables, self.placeholder_positions, self.drawn_rows,
        ]  # fmt: skip

    def upload(self, device: torch.device, drawn: Drawn | None = None) -> PagedBatch:
        """Copy to the device, in one asynchronous copy, and replace placeholders by tokens of ``drawn`` there."""
        arrays = self.arrays()
        packed = pack_ints(arrays, device).to(device, non_blocking=True)
        ids, positions, slots, cu_seqlens_q, seq_lens, rows, tables, placeholders, drawn_rows = packed.split(
            [array.size for array in arrays]
        )
        batch = PagedBatch(
            input_ids=ids,
            positions=positions,
            slot_mapping=slots,
            cu_seqlens_q=cu_seqlens_q,
            seq_lens=seq_lens,
            block_tables=tables.view(self.block_tables.shape),
            logits_rows=rows,
            host_cu_seqlens_q=self.cu_seqlens_q,
            host_seq_lens=self.seq_lens,
            host_block_tables=self.block_tables,
            host_state_slots=self.state_slots,
            batched_append=self.batched_append,
        )
        put_drawn(ids, placeholders, drawn_rows, drawn)
        return batch


def put_drawn(ids: torch.Tensor, placeholders: torch.Tensor, drawn_rows: torch.Tensor, drawn: Drawn | None) -> None:
    """Replace the placeholders among ``ids`` by the tokens that the previous step drew; all on the device."""
    if placeholders.shape[0] and drawn is not None:
        ids.index_copy_(0, placeholders, drawn.select(drawn_rows))


def pack_step(
    step: Step, wanted: list[int], *, num_blocks: int, block_size: int, vocab_size: int, drawn: Drawn | None = None
) -> HostBatch | None:
    """Pack a step's entries; returns ``None`` if none of them computes a token.

    Args:
        wanted: indices of entries whose last token's logits are wanted, without duplicates; ``logits_rows`` is in their
            order. Of an entry with a draft, also the logits of the draft's tokens, and of the token before it, are wanted.
        drawn: tokens drawn by the previous step, for placeholders.

    Raises ``ValueError`` when the step is inconsistent: tokens, blocks or slots that do not exist, or two tokens for one
    slot.
    """
    entries = [entry for entry in step.entries if entry.num_tokens]
    if not entries:
        return None
    _check_entries(entries, block_size)
    seq_lens = [entry.start + entry.num_tokens for entry in entries]
    tables = [e.request.block_table[: -(-end // block_size)] for e, end in zip(entries, seq_lens, strict=True)]
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    bounds = [0]
    placeholders: list[int] = []
    unknown: list[int] = []  # the requests that have a placeholder
    for entry, end, table in zip(entries, seq_lens, tables, strict=True):
        ids += entry.request.token_ids[entry.start : end]
        ids += entry.draft
        span = range(entry.start, end)
        positions += span
        slots += [table[position // block_size] * block_size + position % block_size for position in span]
        bounds.append(len(ids))
        if ids[-1] == PLACEHOLDER:
            placeholders.append(len(ids) - 1)
            unknown.append(entry.request.request_id)
            ids[-1] = 0
    input_ids = np.array(ids, np.int64)
    lowest, highest = _extremes(ids, input_ids)
    if lowest < 0 or highest >= vocab_size:
        raise ValueError(f"a token id is outside the vocabulary of {vocab_size}: {lowest} to {highest}")
    if len(set(slots)) != len(slots):
        raise ValueError(f"two tokens of step {step.step_id} go into one slot of the KV cache")
    return HostBatch(
        input_ids=input_ids,
        positions=np.array(positions, np.int64),
        slot_mapping=np.array(slots, np.int64),
        cu_seqlens_q=np.array(bounds, np.int64),
        seq_lens=np.array(seq_lens, np.int64),
        block_tables=_pack_block_tables(tables, num_blocks),
        logits_rows=np.array(_logits_rows(step, wanted, bounds), np.int64),
        placeholder_positions=np.array(placeholders, np.int64),
        drawn_rows=_find_drawn(unknown, drawn),
        batched_append=step.batched_append,
        cuda_graphs=step.cuda_graphs,
        state_slots=np.array([entry.request.state_slot for entry in entries], np.int64),
    )


def build_batch(
    step: Step, wanted: list[int], *, num_blocks: int, block_size: int, vocab_size: int, device: torch.device
) -> PagedBatch | None:
    """Pack and upload a step without placeholders."""
    host = pack_step(step, wanted, num_blocks=num_blocks, block_size=block_size, vocab_size=vocab_size)
    return None if host is None else host.upload(device)


def _find_drawn(request_ids: list[int], drawn: Drawn | None) -> Ints:
    """Returns the rows of requests in ``drawn``. Raises ``ValueError`` if the previous step drew no token for one."""
    row_of = drawn.row_of if drawn is not None else {}
    missing = [request_id for request_id in request_ids if request_id not in row_of]
    if missing:
        raise ValueError(f"the last step drew no token for requests {missing}")
    return np.array([row_of[request_id] for request_id in request_ids], np.int64)


def _check_entries(entries: list[StepEntry], block_size: int) -> None:
    """Raises ``ValueError`` for the first entry whose tokens or blocks do not exist."""
    for entry in entries:
        request, start, end = entry.request, entry.start, entry.start + entry.num_tokens
        tokens, blocks = len(request.token_ids) + len(entry.draft), len(request.block_table)
        if not 0 <= start <= end <= tokens:
            raise ValueError(f"{request}: tokens {start} to {end} are to be computed, it has {tokens}")
        if end > blocks * block_size:
            raise ValueError(f"{request}: {end} tokens do not fit its {blocks} blocks of {block_size}")


def _pack_block_tables(tables: list[list[int]], num_blocks: int) -> Ints:
    """Returns the tables, ``[rows, most blocks]``, padded with 0. Raises ``ValueError``."""
    lengths = [len(table) for table in tables]
    most, blocks = max(lengths), list(chain.from_iterable(tables))
    flat = np.array(blocks, np.int64)
    lowest, highest = _extremes(blocks, flat)
    if lowest < 1 or highest >= num_blocks:
        raise ValueError(f"a block table names a block outside 1 to {num_blocks - 1}: {lowest} to {highest}")
    if len(blocks) == most * len(tables):
        return flat.reshape(-1, most)
    packed = np.zeros((len(tables), most), np.int64)
    packed[np.arange(most) < np.array(lengths)[:, None]] = flat
    return packed


def _extremes(numbers: list[int], array: Ints) -> tuple[int, int]:
    """Returns the least and the largest of some numbers, given in two forms: NumPy is slower if they are few."""
    if len(numbers) < _FEW:
        return min(numbers), max(numbers)
    return int(array.min()), int(array.max())


def _logits_rows(step: Step, wanted: list[int], bounds: list[int]) -> list[int]:
    """Returns the rows of logits that ``pack_step`` describes; ``bounds`` are ``HostBatch.cu_seqlens_q``."""
    ends = iter(bounds[1:])
    end_of = [next(ends) if entry.num_tokens else 0 for entry in step.entries]
    return [row for i in wanted for row in range(end_of[i] - 1 - len(step.entries[i].draft), end_of[i])]
