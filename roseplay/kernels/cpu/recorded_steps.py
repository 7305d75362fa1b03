"""Small steps on a CPU as recorded lists of calls: what a CUDA graph is to a GPU.

A decode step of a small model spends more time in Python, in its modules and in torch's dispatcher, than in its numbers.
But all that comes out of it for so many tokens is the same list of operations on tensors of the same shapes; a short
prompt's tokens belong to it like any, each a decode that sees what is before it. The list is recorded once for each of
some sizes, to which others are filled up with tokens that nobody wants: the step is run while torch shows each operation
on its way (``cpu.recorder``) and each result is put where it will lie in all later steps, so that views need not be made
again and results are written in place. A replay fills in tokens, positions and block tables, and calls the list.

Nothing is taken on trust: the first replay of a size runs beside the step as it is, on numbers that it was not recorded
with, and must give the same logits. A model whose operations depend on its numbers is left to run as it is.
"""

from __future__ import annotations

import gc
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch

from roseplay.kernels.cpu import tape
from roseplay.kernels.cpu.arena import Arena
from roseplay.kernels.cpu.attention.plan import SHORT_QUERIES, Decodes, Plan
from roseplay.kernels.cpu.recorder import NotReplayableError, Recorder
from roseplay.kernels.replace_modules import same
from roseplay.model.batch import HostBatch, Ints, PagedBatch
from roseplay.model.device_errors import is_out_of_memory

logger = logging.getLogger(__name__)

# Tokens of the steps that are recorded: a size between two is filled up, by 9% more rows on average and a third at most,
# that below 12, where reading the weights is what takes time. Beyond the last one, Python's share of a step is small.
SIZES = (
    *range(1, 9),
    *range(12, 33, 4),
    *range(40, 65, 8),
    *range(80, 129, 16),
    *range(160, 257, 32),
    *range(320, 513, 64),
)
MOST_FILLED = 2  # times its own size a step is filled up to, as long as no recording fits better
MOST_UNWANTED = 32  # tokens whose logits nobody wants, or to fill up with: a replay computes them all the same
RECORD_AFTER = 4  # steps of a size: recording and checking take as long as a few steps, and can be seen as slow tokens
# Before the first request, sizes up to so many tokens are recorded for so long, powers of two before the others.
WARM_UP_TOKENS, WARM_UP_S = 32, 0.5


class RecordedStep:
    """One size of step: its static inputs, its tape, the logits it leaves for each token.

    Args:
        tables: ``[tokens, most blocks]``, block tables of the step that is run; of all sizes in one place.
    """

    def __init__(self, tables: Ints) -> None:
        self.tape = tape.Tape()
        self.logits = torch.empty(0)
        self.checked = False
        self._tables = tables
        self._inputs = torch.zeros((3, len(tables)), dtype=torch.int64)
        self._decodes: dict[int | None, Decodes] = {}

    def record(self, host: HostBatch, arena: Arena, forward: Callable[[PagedBatch], torch.Tensor]) -> torch.Tensor:
        """Run the step and keep its calls; returns the wanted logits. Raises ``NotReplayableError``."""
        seen = self._load(host)
        input_ids, positions, slots = self._inputs
        each = np.arange(len(self._tables) + 1)
        batch = PagedBatch(
            input_ids=input_ids,
            positions=positions,
            slot_mapping=slots,
            cu_seqlens_q=torch.from_numpy(each),
            seq_lens=torch.from_numpy(seen),
            block_tables=torch.from_numpy(self._tables),
            logits_rows=None,
            host_cu_seqlens_q=each,
            host_seq_lens=seen,
            host_block_tables=self._tables,
        )
        arena.reset()
        with tape.record(self.tape), Recorder(arena, self.tape.calls):
            self.logits = forward(batch)
        self.tape.join()
        self._decodes = {
            window: decodes for window, decodes in Plan.of(batch).decodes_of.items() if decodes is not None
        }
        batch.memo.clear()
        return self._wanted(host)

    def replay(self, host: HostBatch) -> torch.Tensor:
        """The wanted logits, until the next replay of any size."""
        seen = self._load(host)
        for window, decodes in self._decodes.items():
            decodes.refill(seen, window)
        self.tape.replay()
        return self._wanted(host)

    def _load(self, host: HostBatch) -> Ints:
        """Take the step's numbers; returns how many tokens each token sees. What it is filled up with are first tokens that
        are written to block 0."""
        inputs, tokens = self._inputs.numpy(), host.num_tokens
        inputs[:, :tokens] = (host.input_ids, host.positions, host.slot_mapping)
        inputs[:, tokens:] = 0
        tables = host.block_tables
        if not host.decodes_only:
            tables = tables[np.repeat(np.arange(host.num_rows), np.diff(host.cu_seqlens_q))]
        self._tables[:tokens, : tables.shape[1]] = tables
        seen: Ints = inputs[1] + 1
        return seen

    def _wanted(self, host: HostBatch) -> torch.Tensor:
        rows = host.logits_rows
        if np.array_equal(rows, np.arange(len(rows))):
            return self.logits[: len(rows)]
        return self.logits.index_select(0, torch.from_numpy(rows))


class RecordedSteps:
    """The recordings of a model, by ``SIZES``; made when a size has come ``RECORD_AFTER`` times, or by ``warm_up``.

    Args:
        forward: a batch's logits, ``[wanted, vocabulary]``.
        columns: blocks of the longest request.

    Attributes:
        refused: why steps are not recorded, None when they are.
    """

    def __init__(self, forward: Callable[[PagedBatch], torch.Tensor], columns: int) -> None:
        self._forward = forward
        self._tables = np.zeros((SIZES[-1], columns), np.int64)  # pages that nothing is written to take no memory
        self._arena = Arena()
        self._steps: dict[int, RecordedStep] = {}
        self._seen: Counter[int] = Counter()
        self.refused: str | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def warm_up(self) -> None:
        """Record and check the sizes that nearly all traffic has, on block 0, which no request owns."""
        until = time.perf_counter() + WARM_UP_S
        sizes = [size for size in SIZES if size <= WARM_UP_TOKENS]
        for size in sorted(sizes, key=lambda size: size & (size - 1) > 0):
            for position in (0, 1):  # recorded with the one, checked with the other
                if self.refused or time.perf_counter() >= until:
                    return
                self._seen[size] = RECORD_AFTER
                self.run(_alike(size, position))

    def run(self, host: HostBatch) -> tuple[torch.Tensor, bool] | None:
        """The step's logits, and whether a replay gave them; None for a step to run as it is."""
        if self.refused or not _fits(host):
            return None
        at = bisect_left(SIZES, host.num_tokens)
        size = SIZES[at]
        step = self._steps.get(size)
        if step is None or not step.checked:
            if not len(host.logits_rows):
                return None  # there is nothing to check it by
            try:
                if step is not None:
                    return self._check(step, host), False
                self._seen[size] += 1
                if self._seen[size] > RECORD_AFTER:
                    return self._record(size, host), False
            except Exception as error:  # the step's own will come again when it runs as it is
                if is_out_of_memory(error):
                    raise
                self._refuse(str(error))
                return None
            most = min(MOST_FILLED * host.num_tokens, host.num_tokens + MOST_UNWANTED)
            larger = (self._steps.get(other) for other in SIZES[at:] if other <= most)
            step = next((step for step in larger if step is not None and step.checked), None)
        return None if step is None else (step.replay(host), True)

    def _record(self, size: int, host: HostBatch) -> torch.Tensor:
        step = RecordedStep(self._tables[:size])
        logits = step.record(host, self._arena, self._forward)
        if self._arena.in_use > 1:
            gc.collect()
        if self._arena.in_use != 1:  # the logits
            raise NotReplayableError("it keeps tensors of a step for the next one")
        self._steps[size] = step
        return logits

    def _check(self, step: RecordedStep, host: HostBatch) -> torch.Tensor:
        """The step as it is, with which its replay must agree."""
        replayed = step.replay(host).clone()
        logits = self._forward(host.upload(torch.device("cpu")))
        if logits.isnan().any():
            return logits  # nothing to check it by
        if not same(logits, replayed):
            raise NotReplayableError("a replay gave other logits")
        step.checked = True
        return logits

    def _refuse(self, why: str) -> None:
        self.refused = why
        self._steps.clear()
        self._arena, self._tables = Arena(), self._tables[:0].copy()
        logger.info("decode steps are not replayed: %s", why)


def _fits(host: HostBatch) -> bool:
    """Whether a step may be run as if all its tokens were decodes."""
    if host.num_tokens > SIZES[-1] or not host.batched_append or host.places.size:
        return False
    if host.num_tokens - len(host.logits_rows) > MOST_UNWANTED:
        return False
    return host.decodes_only or int(np.diff(host.cu_seqlens_q).max()) <= SHORT_QUERIES


def _alike(size: int, position: int) -> HostBatch:
    """So many decodes of the same token at one position, in block 0."""
    same = np.full(size, position)
    return HostBatch(
        input_ids=same,
        positions=same,
        slot_mapping=same,
        cu_seqlens_q=np.arange(size + 1),
        seq_lens=same + 1,
        block_tables=np.zeros((size, 1), np.int64),
        logits_rows=np.arange(size),
        places=np.zeros(0, np.int64),
        sources=np.zeros(0, np.int64),
        batched_append=True,
    )
