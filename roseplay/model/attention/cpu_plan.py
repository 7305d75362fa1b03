"""How a batch is cut into pieces that attend together; worked out once a step, the same in all layers.

Two kinds of pieces. A *fresh* one is a run of equally long prompts with nothing before them: they attend to their
own keys as the model just made them. A *gathered* one reads blocks of the cache: a prompt chunk with a past, or a
group of decodes. Decodes are grouped by length, and a group is as large as a cache-sized workspace: several small
gathers beat one large one by far, because what they write is read again while it is still in the CPU's cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from roseplay.model.batch import Ints, PagedBatch

# Numbers of one gathered key (or value) tensor, about what fits the second-level caches of two cores.
WORKSPACE_NUMBERS = 3 * 2**18
# Blocks that a group may hold in padding: a share of its real ones, and a few for free.
PADDING_SHARE, PADDING_FREE = 0.25, 32


@dataclass(frozen=True, slots=True)
class Fresh:
    """``rows`` prompts of ``length`` tokens each, at tokens ``begin : begin + rows * length``.

    ``mask`` is None for plain causality, else ``[length, length]`` to be added to the scores (a window).
    """

    begin: int
    rows: int
    length: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Gathered:
    """``rows`` rows of ``queries`` tokens each, attending to gathered blocks.

    Attributes:
        tokens: the rows' tokens in the batch: a slice, or indices where they do not lie side by side.
        index: ``[rows * kv_heads * blocks]``: which ``[block, head]`` pieces to gather, so that each row's heads
            come out in one piece.
        blocks: of each row, padded with block 0.
        last: gathered positions to keep, ``[: last]``.
        mask: ``[rows, 1, queries, last]`` to be added to the scores; None where everything is visible.
    """

    tokens: slice | torch.Tensor
    rows: int
    queries: int
    index: torch.Tensor
    blocks: int
    last: int
    mask: torch.Tensor | None


Piece = Fresh | Gathered


def plan_pieces(
    batch: PagedBatch, *, window: int | None, kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> list[Piece]:
    """Cut the batch for layers with this window and these key shapes; ``dtype`` is the masks'."""
    planner = _Planner(batch, window, kv_heads, head_dim, block_size, dtype)
    counts = np.diff(batch.host_cu_seqlens_q)
    is_decode = counts == 1
    pieces = planner.decodes(np.flatnonzero(is_decode))
    prompts = np.flatnonzero(~is_decode).tolist()
    at = 0
    while at < len(prompts):
        row, length = prompts[at], int(counts[prompts[at]])
        if batch.host_seq_lens[row] > length:
            pieces.append(planner.gathered(np.array([row])))
            at += 1
            continue
        run = 1
        while (
            at + run < len(prompts)
            and prompts[at + run] == row + run
            and counts[row + run] == length == batch.host_seq_lens[row + run]
        ):
            run += 1
        pieces.append(planner.fresh(row, run, length))
        at += run
    return pieces


class _Planner:
    def __init__(
        self,
        batch: PagedBatch,
        window: int | None,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> None:
        self.batch, self.window, self.kv_heads = batch, window, kv_heads
        self.block_size, self.dtype = block_size, dtype
        self.device = batch.input_ids.device
        self.block_numbers = kv_heads * head_dim * block_size
        self.used = -(-batch.host_seq_lens // block_size)
        # Blocks before the first one that any of a row's queries sees; 0 without a window.
        first_query = batch.host_seq_lens - np.diff(batch.host_cu_seqlens_q)
        self.skipped = np.maximum(0, first_query - window + 1) // block_size if window else np.zeros_like(self.used)

    def fresh(self, row: int, rows: int, length: int) -> Fresh:
        mask = None
        if self.window is not None and self.window < length:
            position = np.arange(length)
            mask = self._mask((position[:, None] >= position) & (position > position[:, None] - self.window))
        return Fresh(int(self.batch.host_cu_seqlens_q[row]), rows, length, mask)

    def decodes(self, rows: Ints) -> list[Piece]:
        """Groups of rows of similar length, as many in each as the workspace holds."""
        blocks = (self.used - self.skipped)[rows]
        order = np.argsort(blocks, kind="stable")
        groups: list[list[int]] = []
        real = 0
        for i in order.tolist():
            count, size = int(blocks[i]), len(groups[-1]) + 1 if groups else 1
            fits = size * count * self.block_numbers <= WORKSPACE_NUMBERS
            padding = size * count - (real + count)
            if groups and fits and padding <= PADDING_FREE + PADDING_SHARE * real:
                groups[-1].append(i)
                real += count
            else:
                groups.append([i])
                real = count
        return [self.gathered(rows[np.sort(group)]) for group in groups]

    def gathered(self, rows: Ints) -> Gathered:
        """One piece of these rows, which all have the same number of queries."""
        batch, block_size = self.batch, self.block_size
        begins = batch.host_cu_seqlens_q[rows]
        queries = int(batch.host_cu_seqlens_q[rows[0] + 1] - begins[0])
        skipped, seq_lens = self.skipped[rows], batch.host_seq_lens[rows]
        blocks = int((self.used[rows] - skipped).max())

        columns = skipped[:, None] + np.arange(blocks)
        tables = batch.host_block_tables[rows[:, None], np.minimum(columns, batch.host_block_tables.shape[1] - 1)]
        tables[columns >= self.used[rows][:, None]] = 0
        index = tables[:, None, :] * self.kv_heads + np.arange(self.kv_heads)[:, None]

        start = skipped * block_size
        last = int((seq_lens - start).max())
        key_position = (start[:, None] + np.arange(last))[:, None, None, :]
        query_position = (seq_lens[:, None] - queries + np.arange(queries))[:, None, :, None]
        visible = key_position <= query_position
        if self.window is not None:
            visible &= key_position > query_position - self.window

        tokens: slice | torch.Tensor
        if (np.diff(begins) == queries).all():
            tokens = slice(int(begins[0]), int(begins[0]) + len(rows) * queries)
        else:
            tokens = self._tensor((begins[:, None] + np.arange(queries)).reshape(-1))
        return Gathered(tokens, len(rows), queries, self._tensor(index.reshape(-1)), blocks, last, self._mask(visible))

    def _tensor(self, array: Ints) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _mask(self, visible: np.ndarray) -> torch.Tensor | None:
        """0 where visible, minus infinity elsewhere; None when everything is visible."""
        if visible.all():
            return None
        mask = torch.zeros(visible.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(torch.from_numpy(~visible).to(self.device), float("-inf"))
