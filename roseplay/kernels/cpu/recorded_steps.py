"""Small steps on a CPU as recorded lists of calls: what CUDA graphs are on a GPU.

A decode step of a small model spends more time in the Python code of its modules and in torch's dispatcher than in
computing. For a given number of tokens this is always the same list of operations on tensors of the same shapes. The
list is recorded once for each of some sizes, and other sizes are padded to these. While a step is recorded, each
operation is intercepted (``recorder``) and its result gets the memory that it has in all replays (``arena``). A replay
writes tokens, positions and block tables to the static inputs and calls the list. The tokens of a short prompt are
replayed as decodes, each of which sees those before it.

A recording is checked before it is used: its first replay, with other tokens than it was recorded with, must give the
logits of the model itself. A model whose operations depend on values is not recorded.
"""

from __future__ import annotations

import gc
import logging
import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from roseplay.core.progress import Reporter
from roseplay.kernels.cpu import tape
from roseplay.kernels.cpu.arena import Arena
from roseplay.kernels.cpu.attention.plan import SHORT_QUERIES, Decodes, Plan
from roseplay.kernels.cpu.recorder import NotReplayableError, Recorder
from roseplay.kernels.replace_modules import same
from roseplay.model.accelerator import Forward
from roseplay.model.batch import HostBatch, Ints, PagedBatch, dummy_batch
from roseplay.model.device_errors import is_out_of_memory

logger = logging.getLogger(__name__)

# Tokens of the steps that are recorded. Sizes in between are padded, by 9% on average and at most by a third, below 12,
# where a step takes as long as reading the weights. Above the last size, Python's part of a step is small.
SIZES = (
    *range(1, 9),
    *range(12, 33, 4),
    *range(40, 65, 8),
    *range(80, 129, 16),
    *range(160, 257, 32),
    *range(320, 513, 64),
)
MAX_PADDING = 2  # a step is padded to at most this many times its size while a better-fitting size is not recorded


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """When steps are recorded, and which are replayed.

    Attributes:
        record_after: steps of a size that run unrecorded first: recording and checking take as long as a few steps,
            which delays tokens.
        max_unwanted: most tokens of a step that are padding or whose logits are not wanted: a replay computes the
            logits of these as well.
        warm_up_tokens: largest size that is recorded at the start.
        warm_up_s: seconds after which no further size is recorded at the start.
    """

    record_after: int = 4
    max_unwanted: int = 32
    warm_up_tokens: int = 32
    warm_up_s: float = 0.5


class RecordedStep:
    """A recorded step of one size: its static inputs, its tape, and the logits of each token.

    Args:
        tables: ``[tokens, most blocks]``, the static block tables, whose memory all sizes share.
    """

    def __init__(self, tables: Ints) -> None:
        self.tape = tape.Tape()
        self.logits = torch.empty(0)
        self.checked = False
        self._tables = tables
        self._inputs = torch.zeros((3, len(tables)), dtype=torch.int64)
        self._decodes: dict[int | None, Decodes] = {}

    def record(self, host: HostBatch, arena: Arena, forward: Forward) -> torch.Tensor:
        """Run the step and record its calls; returns the wanted logits. Raises ``NotReplayableError``."""
        seq_lens = self._load(host)
        input_ids, positions, slots = self._inputs
        bounds = np.arange(len(self._tables) + 1)
        batch = PagedBatch(
            input_ids=input_ids,
            positions=positions,
            slot_mapping=slots,
            cu_seqlens_q=torch.from_numpy(bounds),
            seq_lens=torch.from_numpy(seq_lens),
            block_tables=torch.from_numpy(self._tables),
            logits_rows=None,
            host_cu_seqlens_q=bounds,
            host_seq_lens=seq_lens,
            host_block_tables=self._tables,
        )
        arena.reset()
        with tape.record(self.tape), Recorder(arena, self.tape.calls):
            self.logits = forward(batch)
        self.tape.join()
        found = Plan.of(batch).decodes_of.items()
        self._decodes = {window: decodes for window, decodes in found if decodes is not None}
        batch.memo.clear()
        return self._wanted(host)

    def replay(self, host: HostBatch) -> torch.Tensor:
        """Replay the step with another batch; returns the wanted logits, valid until the next replay of any size."""
        seq_lens = self._load(host)
        for window, decodes in self._decodes.items():
            decodes.refill(seq_lens, window)
        self.tape.replay()
        return self._wanted(host)

    def _load(self, host: HostBatch) -> Ints:
        """Copy the batch to the static inputs; returns how many tokens each token sees.

        Padding tokens are the first tokens of requests in block 0.
        """
        inputs, tokens = self._inputs.numpy(), host.num_tokens
        inputs[:, :tokens] = (host.input_ids, host.positions, host.slot_mapping)
        inputs[:, tokens:] = 0
        tables = host.block_tables
        if not host.decodes_only:
            tables = tables[np.repeat(np.arange(host.num_rows), np.diff(host.cu_seqlens_q))]
        self._tables[:tokens, : tables.shape[1]] = tables
        seq_lens: Ints = inputs[1] + 1
        return seq_lens

    def _wanted(self, host: HostBatch) -> torch.Tensor:
        rows = host.logits_rows
        if np.array_equal(rows, np.arange(len(rows))):
            return self.logits[: len(rows)]
        return self.logits.index_select(0, torch.from_numpy(rows))


class RecordedSteps:
    """The recorded steps of a model, one for each of ``SIZES``: recorded by ``warm_up``, or while serving.

    Args:
        forward: computes a batch's logits, ``[wanted, vocabulary]``.
        columns: blocks of the longest request.
        options: when to record and replay.

    Attributes:
        refused: why steps are not recorded, None when they are.
    """

    def __init__(self, forward: Forward, columns: int, options: RecordingOptions) -> None:
        self._forward, self._options = forward, options
        # Rows that are never written take no memory: the system allocates pages when they are written.
        self._tables = np.zeros((SIZES[-1], columns), np.int64)
        self._arena = Arena()
        self._steps: dict[int, RecordedStep] = {}
        self._seen: Counter[int] = Counter()
        self.refused: str | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def warm_up(self, reporter: Reporter) -> None:
        """Record and check the smallest sizes, on block 0, which no request owns."""
        until = time.perf_counter() + self._options.warm_up_s
        sizes = [size for size in SIZES if size <= self._options.warm_up_tokens]
        reporter.begin("warm-up", 2 * len(sizes), "steps")
        for size in sorted(sizes, key=lambda size: size & (size - 1) > 0):
            for position in (0, 1):  # the first run records, the second checks
                if self.refused or time.perf_counter() >= until:
                    return
                self._seen[size] = self._options.record_after
                self.run(dummy_batch(size, row_tokens=1, block_size=2, num_logits=size, start=position, token=position))
                reporter.advance()

    def run(self, host: HostBatch) -> tuple[torch.Tensor, bool] | None:
        """Returns the step's logits and whether a replay computed them; None if the step must be run by the model."""
        if self.refused or not self._fits(host):
            return None
        at = bisect_left(SIZES, host.num_tokens)
        size = SIZES[at]
        step = self._steps.get(size)
        if step is None or not step.checked:
            if not len(host.logits_rows):
                return None  # without logits a recording cannot be checked
            try:
                if step is not None:
                    return self._check(step, host), False
                self._seen[size] += 1
                if self._seen[size] > self._options.record_after:
                    return self._record(size, host), False
            except Exception as error:  # an error of the step itself is raised again when the model runs it
                if is_out_of_memory(error):
                    raise
                self._refuse(str(error))
                return None
            most = min(MAX_PADDING * host.num_tokens, host.num_tokens + self._options.max_unwanted)
            larger = (self._steps.get(other) for other in SIZES[at:] if other <= most)
            step = next((step for step in larger if step is not None and step.checked), None)
        return None if step is None else (step.replay(host), True)

    def _fits(self, host: HostBatch) -> bool:
        """Whether the step may be run as if all its tokens were decodes."""
        if host.num_tokens > SIZES[-1] or not host.batched_append or host.placeholder_positions.size:
            return False
        if host.num_tokens - len(host.logits_rows) > self._options.max_unwanted:
            return False
        return host.decodes_only or int(np.diff(host.cu_seqlens_q).max()) <= SHORT_QUERIES

    def _record(self, size: int, host: HostBatch) -> torch.Tensor:
        step = RecordedStep(self._tables[:size])
        logits = step.record(host, self._arena, self._forward)
        if self._arena.in_use > 1:
            gc.collect()
        if self._arena.in_use != 1:  # only the logits may be left
            raise NotReplayableError("it keeps tensors of a step for the next one")
        self._steps[size] = step
        return logits

    def _check(self, step: RecordedStep, host: HostBatch) -> torch.Tensor:
        """Run the model and the replay; returns the model's logits. Raises ``NotReplayableError`` when they differ."""
        replayed = step.replay(host).clone()
        logits = self._forward(host.upload(torch.device("cpu")))
        if logits.isnan().any():
            return logits  # they cannot be compared
        if not same(logits, replayed):
            raise NotReplayableError("a replay gave other logits")
        step.checked = True
        return logits

    def _refuse(self, why: str) -> None:
        self.refused = why
        self._steps.clear()
        self._arena, self._tables = Arena(), self._tables[:0].copy()
        logger.warning("steps are not replayed, the model's code runs in each: %s", why)
