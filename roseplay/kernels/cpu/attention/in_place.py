"""Which of a batch's tokens a kernel that reads blocks in place attends with, and how: one by one, or in spans of a prompt.

Worked out once a step; the arrays are what the kernels are told by address.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from roseplay.model.batch import Ints, PagedBatch

# Up to so many queries of a row attend one by one where blocks are read in place, each as if it were a decode.
SHORT_QUERIES = 32


@dataclass(frozen=True, slots=True)
class Decodes:
    """Single tokens, each a row for a kernel that reads blocks in place.

    Attributes:
        tokens: ``[rows]``, each row's token in the batch; all arrays are contiguous.
        tables: ``[rows, most blocks]``; the row sees its request's tokens ``firsts`` to ``seq_lens - 1``.
    """

    tokens: Ints
    tables: Ints
    seq_lens: Ints
    firsts: Ints
    _arguments: list[int] = field(default_factory=list)

    def arguments(self) -> list[int]:
        """For the kernel: the arrays' addresses, the number of rows, the width of the tables."""
        if not self._arguments:
            arrays = (self.tokens, self.tables, self.seq_lens, self.firsts)
            self._arguments.extend([*(array.ctypes.data for array in arrays), *self.tables.shape])
        return self._arguments

    def refill(self, seq_lens: Ints, window: int | None) -> None:
        """As many rows of another step in the same arrays; the tables are the batch's own where all its rows are in here."""
        self.seq_lens[:] = seq_lens
        self.firsts[:] = np.maximum(0, seq_lens - window) if window else 0


def plan_decodes(batch: PagedBatch, window: int | None) -> Decodes | None:
    """The tokens that attend one by one: decodes, and a few of a prompt; None if there is none."""
    counts = np.diff(batch.host_cu_seqlens_q)
    rows = np.flatnonzero(counts <= SHORT_QUERIES)
    if not rows.size:
        return None
    if rows.size == len(counts) and batch.num_tokens == rows.size:
        tokens, seq_lens, tables = np.arange(rows.size), batch.host_seq_lens.copy(), batch.host_block_tables
    else:
        counts = counts[rows]
        back = np.repeat(np.cumsum(counts), counts) - np.arange(counts.sum()) - 1  # tokens of its row that follow
        tokens = np.repeat(batch.host_cu_seqlens_q[rows + 1], counts) - 1 - back
        seq_lens = np.repeat(batch.host_seq_lens[rows], counts) - back
        tables = np.repeat(batch.host_block_tables[rows], counts, axis=0)
    firsts = np.maximum(0, seq_lens - window) if window else np.zeros_like(seq_lens)
    return Decodes(tokens, np.ascontiguousarray(tables), seq_lens, firsts)


@dataclass(frozen=True, slots=True)
class Spans:
    """Queries that lie side by side, of one request, for a kernel that reads blocks in place; all arrays are contiguous.

    Attributes:
        tokens: ``[spans]``, each one's first query in the batch.
        counts: ``[spans]``, its queries.
        positions: ``[spans]``, of its first query in the request; it sees the tokens up to itself.
        tables: ``[spans, most blocks]``.
    """

    tokens: Ints
    counts: Ints
    positions: Ints
    tables: Ints

    def arguments(self) -> list[int]:
        """For the kernel: the arrays' addresses, the number of spans, the width of the tables."""
        arrays = (self.tokens, self.counts, self.positions, self.tables)
        return [*(array.ctypes.data for array in arrays), *self.tables.shape]


def plan_spans(batch: PagedBatch, most: int) -> Spans | None:
    """What ``plan_decodes`` leaves, ``most`` queries at a time; None if that is nothing."""
    counts = np.diff(batch.host_cu_seqlens_q)
    rows = np.flatnonzero(counts > SHORT_QUERIES)
    if not rows.size:
        return None
    rows = np.repeat(rows, -(-counts[rows] // most))
    first_of_row = np.concatenate([[True], np.diff(rows) > 0])
    number = np.arange(rows.size)
    begins = (number - np.maximum.accumulate(np.where(first_of_row, number, 0))) * most  # in the row's queries
    return Spans(
        batch.host_cu_seqlens_q[rows] + begins,
        np.minimum(most, counts[rows] - begins),
        batch.host_seq_lens[rows] - counts[rows] + begins,
        np.ascontiguousarray(batch.host_block_tables[rows]),
    )
