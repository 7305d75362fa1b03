"""Which tokens of a batch attend one by one and which in spans of a prompt; computed once a step.

Kernels get the arrays by address.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from roseplay.model.batch import Ints, PagedBatch

# Rows of up to this many tokens attend token by token, each as if it were a decode.
SHORT_QUERIES = 32


@dataclass(frozen=True, slots=True)
class Decodes:
    """Single tokens, each a row of the decode kernel.

    Attributes:
        tokens: ``[rows]``, each row's token in the batch; all arrays are contiguous int64.
        tables: ``[rows, most blocks]``, block tables.
        seq_lens, firsts: ``[rows]``: the row sees its request's tokens ``firsts`` to ``seq_lens - 1``.
    """

    tokens: Ints
    tables: Ints
    seq_lens: Ints
    firsts: Ints
    _arguments: list[int] = field(default_factory=list)

    def arguments(self) -> list[int]:
        """The kernel's arguments: the arrays' addresses, the number of rows, the width of the tables."""
        if not self._arguments:
            arrays = (self.tokens, self.tables, self.seq_lens, self.firsts)
            self._arguments.extend([*(array.ctypes.data for array in arrays), *self.tables.shape])
        return self._arguments

    def refill(self, seq_lens: Ints, window: int | None) -> None:
        """Overwrite the arrays with as many rows of another step, ``seq_lens`` ``[rows]``.

        ``tables`` are then not copied: they are the batch's own, because all its rows are decodes.
        """
        self.seq_lens[:] = seq_lens
        self.firsts[:] = np.maximum(0, seq_lens - window) if window else 0


@dataclass(frozen=True, slots=True)
class Spans:
    """Consecutive queries of one request, each span a row of the prompt kernel; all arrays are contiguous int64.

    Attributes:
        tokens: ``[spans]``, the token in the batch of each span's first query.
        counts: ``[spans]``, the number of its queries.
        positions: ``[spans]``, the position of its first query in the request.
        tables: ``[spans, most blocks]``, block tables.
    """

    tokens: Ints
    counts: Ints
    positions: Ints
    tables: Ints

    def arguments(self) -> list[int]:
        """The kernel's arguments: the arrays' addresses, the number of spans, the width of the tables."""
        arrays = (self.tokens, self.counts, self.positions, self.tables)
        return [*(array.ctypes.data for array in arrays), *self.tables.shape]


class Plan:
    """How the tokens of one batch attend.

    Attributes:
        prompts: rows of more than ``SHORT_QUERIES`` tokens.
        decodes_of: by window, the tokens of all other rows; None where there are none.
    """

    def __init__(self, batch: PagedBatch) -> None:
        self._batch = batch
        self._counts = np.diff(batch.host_cu_seqlens_q)
        self._spans: dict[int, Spans] = {}
        self.prompts = np.flatnonzero(self._counts > SHORT_QUERIES)
        self.decodes_of: dict[int | None, Decodes | None] = {}

    @classmethod
    def of(cls, batch: PagedBatch) -> Plan:
        """The batch's plan, which all layers share."""
        plan: Plan | None = batch.memo.get("plan")
        if plan is None:
            plan = batch.memo["plan"] = cls(batch)
        return plan

    def decodes(self, window: int | None) -> Decodes | None:
        """The tokens that attend one by one, decodes and short chunks of prompts; None if there are none."""
        if window not in self.decodes_of:
            self.decodes_of[window] = self._plan_decodes(window)
        return self.decodes_of[window]

    def spans(self, most: int) -> Spans:
        """The tokens of ``prompts``, ``most`` queries at a time."""
        if most not in self._spans:
            self._spans[most] = self._plan_spans(most)
        return self._spans[most]

    def _plan_decodes(self, window: int | None) -> Decodes | None:
        batch, counts = self._batch, self._counts
        rows = np.flatnonzero(counts <= SHORT_QUERIES)
        if not rows.size:
            return None
        if rows.size == len(counts) and batch.num_tokens == rows.size:
            tokens, seq_lens, tables = np.arange(rows.size), batch.host_seq_lens.copy(), batch.host_block_tables
        else:
            counts = counts[rows]
            back = (
                np.repeat(np.cumsum(counts), counts) - np.arange(counts.sum()) - 1
            )  # how many tokens of its row follow
            tokens = np.repeat(batch.host_cu_seqlens_q[rows + 1], counts) - 1 - back
            seq_lens = np.repeat(batch.host_seq_lens[rows], counts) - back
            tables = np.repeat(batch.host_block_tables[rows], counts, axis=0)
        firsts = np.maximum(0, seq_lens - window) if window else np.zeros_like(seq_lens)
        return Decodes(tokens, np.ascontiguousarray(tables), seq_lens, firsts)

    def _plan_spans(self, most: int) -> Spans:
        batch, counts = self._batch, self._counts
        rows = np.repeat(self.prompts, -(-counts[self.prompts] // most))
        first_of_row = np.concatenate([[True], np.diff(rows) > 0])
        number = np.arange(rows.size)
        begins = (number - np.maximum.accumulate(np.where(first_of_row, number, 0))) * most  # offset in the row
        return Spans(
            batch.host_cu_seqlens_q[rows] + begins,
            np.minimum(most, counts[rows] - begins),
            batch.host_seq_lens[rows] - counts[rows] + begins,
            np.ascontiguousarray(batch.host_block_tables[rows]),
        )
