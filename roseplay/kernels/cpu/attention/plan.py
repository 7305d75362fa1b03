"""Plans which tokens of a batch attend one by one and which in spans of a prompt; computed once a step.

Kernels get the arrays by address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from roseplay.model.attention.pattern import EVERYTHING, Reach
from roseplay.model.batch import HostBatch, Ints, PagedBatch

# Rows of up to this many tokens attend token by token, each as if it were a decode.
SHORT_QUERIES = 32
_MEMO = "plan"


@dataclass(slots=True)
class Rows:
    """Rows of an attention kernel; all arrays are contiguous int64.

    Attributes:
        tokens: ``[rows]``, each row's (first) token in the batch.
        tables: ``[rows, most blocks]``, block tables.
        count: ``[1]``, the number of rows in use: arrays may be longer.
    """

    tokens: Ints
    tables: Ints
    count: Ints
    _arguments: list[int] = field(default_factory=list, init=False)

    def numbers(self) -> tuple[Ints, ...]:
        """Returns the arrays ``[rows]``, in the order in which kernels get them."""
        return (self.tokens,)

    def arguments(self) -> list[int]:
        """Returns the kernel's arguments: the addresses of the arrays and of the count, and the width of the tables."""
        if not self._arguments:
            arrays = (*self.numbers(), self.tables, self.count)
            self._arguments.extend([*(array.ctypes.data for array in arrays), self.tables.shape[1]])
        return self._arguments

    def refill(self, rows: Rows | None) -> None:
        """Overwrite the rows with others of the same kind, or none if None; there must be space for them."""
        if rows is None:
            self.count[0] = 0
            return
        count = self.count[0] = rows.tokens.size
        for mine, others in zip(self.numbers(), rows.numbers(), strict=True):
            mine[:count] = others[:count]
        self.tables[:count, : rows.tables.shape[1]] = rows.tables[:count]


@dataclass(slots=True)
class Decodes(Rows):
    """Single tokens, each a row of the decode kernel.

    Attributes:
        seq_lens, firsts: ``[rows]``: the row sees its request's tokens ``firsts`` to ``seq_lens - 1``.
    """

    seq_lens: Ints
    firsts: Ints

    def numbers(self) -> tuple[Ints, ...]:
        return self.tokens, self.seq_lens, self.firsts


@dataclass(slots=True)
class Spans(Rows):
    """Consecutive queries of one request, each span a row of the prompt kernel.

    Attributes:
        counts: ``[rows]``, the number of its queries.
        positions: ``[rows]``, the position of its first query in the request.
    """

    counts: Ints
    positions: Ints

    def numbers(self) -> tuple[Ints, ...]:
        return self.tokens, self.counts, self.positions


class Plan:
    """The plan of how the tokens of one batch attend. Arguments are as in ``HostBatch``."""

    def __init__(self, cu_seqlens_q: Ints, seq_lens: Ints, block_tables: Ints) -> None:
        self._cu_seqlens_q, self._seq_lens, self._block_tables = cu_seqlens_q, seq_lens, block_tables
        self._decodes_only = cu_seqlens_q.size - 1 == cu_seqlens_q[-1]
        self._decodes: dict[Reach, Decodes | None] = {}
        self._spans: dict[tuple[int, bool], Spans] = {}

    @classmethod
    def of(cls, batch: PagedBatch) -> Plan | StaticPlan:
        """Returns the batch's plan, which all layers share."""
        plan: Plan | StaticPlan | None = batch.memo.get(_MEMO)
        if plan is None:
            plan = batch.memo[_MEMO] = cls(batch.host_cu_seqlens_q, batch.host_seq_lens, batch.host_block_tables)
        return plan

    @cached_property
    def _counts(self) -> Ints:
        return np.diff(self._cu_seqlens_q)

    @cached_property
    def _prompts(self) -> Ints:
        return np.flatnonzero(self._counts > SHORT_QUERIES)

    @property
    def has_prompts(self) -> bool:
        """Whether some rows have more than ``SHORT_QUERIES`` tokens."""
        return not self._decodes_only and self._prompts.size > 0

    def prompt_rows(self, *, every: bool = False) -> Sequence[int]:
        """Returns the batch's rows that are prompts, or every row, for a backend that computes each separately."""
        return range(self._seq_lens.size) if every else self._prompts.tolist()

    def decodes(self, reach: Reach) -> Decodes | None:
        """Returns the tokens that attend one by one, decodes and short chunks of prompts; None if there are none."""
        if reach not in self._decodes:
            self._decodes[reach] = self._plan_decodes(reach)
        return self._decodes[reach]

    def spans(self, most: int, *, every: bool = False) -> Spans:
        """Returns the tokens of prompts, or of every row, ``most`` queries at a time."""
        if (most, every) not in self._spans:
            self._spans[most, every] = self._plan_spans(most, np.flatnonzero(self._counts) if every else self._prompts)
        return self._spans[most, every]

    def _plan_decodes(self, reach: Reach) -> Decodes | None:
        seq_lens, tables = self._seq_lens, self._block_tables
        if self._decodes_only:
            tokens = np.arange(seq_lens.size)
        else:
            rows = np.flatnonzero(self._counts <= SHORT_QUERIES)
            if not rows.size:
                return None
            counts = self._counts[rows]
            # The number of tokens in its row after each token.
            back = np.repeat(np.cumsum(counts), counts) - np.arange(counts.sum()) - 1
            tokens = np.repeat(self._cu_seqlens_q[rows + 1], counts) - 1 - back
            seq_lens = np.repeat(seq_lens[rows], counts) - back
            tables = np.repeat(tables[rows], counts, axis=0)
        firsts = np.zeros(seq_lens.size, np.int64) if reach == EVERYTHING else np.maximum(0, reach.first(seq_lens - 1))
        tables, seq_lens = np.ascontiguousarray(tables), np.ascontiguousarray(seq_lens)
        return Decodes(tokens, tables, np.array([tokens.size]), seq_lens, firsts)

    def _plan_spans(self, most: int, of: Ints) -> Spans:
        counts = self._counts
        rows = np.repeat(of, -(-counts[of] // most))
        first_of_row = np.concatenate([[True], np.diff(rows) > 0])[: rows.size]
        number = np.arange(rows.size)
        begins = (number - np.maximum.accumulate(np.where(first_of_row, number, 0))) * most  # offset in the row
        return Spans(
            self._cu_seqlens_q[rows] + begins,
            np.ascontiguousarray(self._block_tables[rows]),
            np.array([rows.size]),
            np.minimum(most, counts[rows] - begins),
            self._seq_lens[rows] - counts[rows] + begins,
        )


class StaticPlan:
    """The plan of a recorded step: its arrays keep their addresses and are refilled for each batch.

    It has the same methods as ``Plan``.

    Args:
        batch: the first batch.
        tables: ``[tokens, most blocks]``, memory for as many block tables as the step has tokens.

    Attributes:
        in_place: whether all layers attend to prompts by calls that can be repeated. A layer that asks for
            ``prompt_rows`` instead gets none, and the result of a step with prompts is wrong.
    """

    def __init__(self, batch: PagedBatch, tables: Ints) -> None:
        self._tables = tables
        self._plan = Plan(batch.host_cu_seqlens_q, batch.host_seq_lens, batch.host_block_tables)
        self._decodes: dict[Reach, Decodes] = {}
        self._spans: dict[tuple[int, bool], Spans] = {}
        self.in_place = True
        batch.memo[_MEMO] = self

    @property
    def has_prompts(self) -> bool:
        return len(self._tables) > SHORT_QUERIES

    def prompt_rows(self, *, every: bool = False) -> Sequence[int]:
        self.in_place = False
        return ()

    def decodes(self, reach: Reach) -> Decodes:
        if reach not in self._decodes:
            tokens, seq_lens, firsts = np.zeros((3, len(self._tables)), np.int64)
            decodes = self._decodes[reach] = Decodes(tokens, self._tables, np.zeros(1, np.int64), seq_lens, firsts)
            decodes.refill(self._plan.decodes(reach))
        return self._decodes[reach]

    def spans(self, most: int, *, every: bool = False) -> Spans:
        if (most, every) not in self._spans:
            size, columns = self._tables.shape
            # Each prompt's last span may be short.
            rows = size if every else size // most + size // (SHORT_QUERIES + 1) + 1
            tokens, counts, positions = np.zeros((3, rows), np.int64)
            tables = np.zeros((rows, columns), np.int64)
            spans = self._spans[most, every] = Spans(tokens, tables, np.zeros(1, np.int64), counts, positions)
            spans.refill(self._plan.spans(most, every=every))
        return self._spans[most, every]

    def refill(self, host: HostBatch) -> None:
        """Overwrite the arrays with those of a batch that has no more tokens than the step."""
        self._plan = Plan(host.cu_seqlens_q, host.seq_lens, host.block_tables)
        for reach, decodes in self._decodes.items():
            decodes.refill(self._plan.decodes(reach))
        for (most, every), spans in self._spans.items():
            spans.refill(self._plan.spans(most, every=every))
