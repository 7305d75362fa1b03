"""How a batch is cut into pieces whose blocks are gathered and which attend together; worked out once a step, the same in all layers of a kind.

A piece is a group of rows with equally many queries. A *fresh* one is a run of equally long prompts with nothing
before them: they attend to their own keys as the model just made them. The others read blocks of the cache: a prompt
chunk with a past, or a group of decodes. Decodes are grouped by length, and a group is as large as a cache-sized
workspace: several small gathers beat one large one by far, because what they write is read again while it is still
in the CPU's cache. Long prompts attend a span of queries at a time, each to no more keys than it can see.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from roseplay.kernels.cpu.attention.in_place import SHORT_QUERIES
from roseplay.model.batch import Ints, PagedBatch

# Numbers of one gathered key (or value) tensor, about what fits the second-level caches of two cores.
WORKSPACE_NUMBERS = 3 * 2**18
# Blocks that a group may hold in padding: a share of its real ones, and a few for free.
PADDING_SHARE, PADDING_FREE = 0.25, 32
# Queries of a prompt that attend at once where a mask is needed: it bounds the memory of mask and scores.
SPAN_QUERIES = 256


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What layers must have in common to share a plan.

    Attributes:
        window: as in ``AttentionBackend.attend``.
        explicit: scores are spelled out (softcap, sinks), so that causality needs a mask.
        dtype: of masks.
    """

    window: int | None
    kv_heads: int
    head_dim: int
    block_size: int
    explicit: bool
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Span:
    """Queries ``[begin, end)`` of each of a piece's rows attend to its keys ``[first, last)``.

    ``mask`` is added to the scores, ``[rows or 1, 1, queries or 1, keys]``; None where all is visible or ``causal``,
    which means that query i sees keys 0 to i.
    """

    begin: int
    end: int
    first: int
    last: int
    mask: torch.Tensor | None
    causal: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """``rows`` rows of ``queries`` tokens each.

    Attributes:
        tokens: the rows' tokens in the batch: a slice, or indices where they do not lie side by side.
        index: ``[rows * kv_heads * blocks]``: which ``[block, head]`` parts of the cache to gather, so that each
            row's heads come out in one part. None: the keys are the batch's own.
    """

    tokens: slice | torch.Tensor
    rows: int
    queries: int
    index: torch.Tensor | None
    spans: list[Span]


def plan_pieces(batch: PagedBatch, kind: LayerKind, *, with_decodes: bool = True) -> list[Piece]:
    """Cut the batch for layers of this kind; the rows of ``plan_decodes`` are left out unless ``with_decodes``."""
    planner = _Planner(batch, kind)
    counts = np.diff(batch.host_cu_seqlens_q)
    pieces = planner.decodes(np.flatnonzero(counts == 1)) if with_decodes else []
    prompts = np.flatnonzero(counts > (1 if with_decodes else SHORT_QUERIES)).tolist()
    at = 0
    while at < len(prompts):
        row, length = prompts[at], int(counts[prompts[at]])
        if batch.host_seq_lens[row] > length:
            pieces.append(planner.chunk(row))
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
    def __init__(self, batch: PagedBatch, kind: LayerKind) -> None:
        self.batch, self.kind = batch, kind
        self.device = batch.input_ids.device
        self.used = -(-batch.host_seq_lens // kind.block_size)
        # Blocks before the first one that any of a row's queries sees; 0 without a window.
        first_query = batch.host_seq_lens - np.diff(batch.host_cu_seqlens_q)
        window = kind.window
        self.skipped = (
            np.maximum(0, first_query - window + 1) // kind.block_size if window else np.zeros_like(self.used)
        )

    def fresh(self, row: int, rows: int, length: int) -> Piece:
        """Prompts that are computed from their first token on."""
        begin = int(self.batch.host_cu_seqlens_q[row])
        plain = not self.kind.explicit and (self.kind.window is None or self.kind.window >= length)
        spans = [Span(0, length, 0, length, None, causal=True)] if plain else self._spans(length, 0)
        return Piece(slice(begin, begin + rows * length), rows, length, None, spans)

    def chunk(self, row: int) -> Piece:
        """A part of a prompt that has a past in the cache."""
        begin, end = self.batch.host_cu_seqlens_q[row : row + 2].tolist()
        index = self._index(np.array([row]))
        past = int(self.batch.host_seq_lens[row] - (end - begin) - self.skipped[row] * self.kind.block_size)
        return Piece(slice(begin, end), 1, end - begin, index, self._spans(end - begin, past))

    def decodes(self, rows: Ints) -> list[Piece]:
        """Groups of rows of similar length, as many in each as the workspace holds."""
        kind = self.kind
        blocks = (self.used - self.skipped)[rows]
        most = WORKSPACE_NUMBERS // (kind.kv_heads * kind.head_dim * kind.block_size)
        groups: list[list[int]] = []
        real = 0
        for i in np.argsort(blocks, kind="stable").tolist():
            count = int(blocks[i])
            size = len(groups[-1]) + 1 if groups else 1
            padding = size * count - (real + count)
            if groups and size * count <= most and padding <= PADDING_FREE + PADDING_SHARE * real:
                groups[-1].append(i)
                real += count
            else:
                groups.append([i])
                real = count
        return [self._decode_group(rows[np.sort(group)]) for group in groups]

    def _decode_group(self, rows: Ints) -> Piece:
        seq_lens = self.batch.host_seq_lens[rows]
        start = self.skipped[rows] * self.kind.block_size
        last = int((seq_lens - start).max())
        position = start[:, None] + np.arange(last)
        visible = position < seq_lens[:, None]
        if self.kind.window is not None:
            visible &= position >= seq_lens[:, None] - self.kind.window
        mask = None if visible.all() else self._mask(visible)[:, None, None, :]
        begins = self.batch.host_cu_seqlens_q[rows]
        side_by_side = (np.diff(begins) == 1).all()
        tokens = slice(int(begins[0]), int(begins[0]) + len(rows)) if side_by_side else self._tensor(begins)
        return Piece(tokens, len(rows), 1, self._index(rows), [Span(0, 1, 0, last, mask)])

    def _index(self, rows: Ints) -> torch.Tensor:
        heads, table = self.kind.kv_heads, self.batch.host_block_tables
        skipped, used = self.skipped[rows][:, None], self.used[rows][:, None]
        columns = skipped + np.arange(int((used - skipped).max()))
        blocks = table[rows[:, None], np.minimum(columns, table.shape[1] - 1)]
        blocks[columns >= used] = 0
        return self._tensor((blocks[:, None, :] * heads + np.arange(heads)[:, None]).reshape(-1))

    def _spans(self, queries: int, past: int) -> list[Span]:
        """Causal attention of one row's queries, which come after ``past`` keys.

        Seen from its lower right corner, every span's mask is the same: they are all views of one.
        """
        window = self.kind.window
        bounds = []
        for begin in range(0, queries, SPAN_QUERIES):
            end = min(queries, begin + SPAN_QUERIES)
            first = max(0, past + begin - window + 1) if window else 0
            bounds.append((begin, end, first, past + end))
        height, width = min(queries, SPAN_QUERIES), max(last - first for _, _, first, last in bounds)
        back = np.arange(width - 1, -1, -1) - np.arange(height - 1, -1, -1)[:, None]  # how far a key lies behind
        corner = self._mask((back >= 0) & (back < window) if window else back >= 0)
        return [
            Span(begin, end, first, last, corner[None, None, height - (end - begin) :, width - (last - first) :])
            for begin, end, first, last in bounds
        ]

    def _tensor(self, array: Ints) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _mask(self, visible: np.ndarray) -> torch.Tensor:
        """0 where visible, minus infinity elsewhere."""
        mask = torch.zeros(visible.shape, dtype=self.kind.dtype, device=self.device)
        return mask.masked_fill_(torch.from_numpy(~visible).to(self.device), float("-inf"))
