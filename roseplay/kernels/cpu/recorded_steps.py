"""Records small steps on a CPU as lists of calls, as CUDA graphs do on a GPU.

A decode step of a small model spends more time in the Python code of its modules and in torch's dispatcher than in
computing. For a given number of tokens this is always the same list of operations on tensors of the same shapes. The
list is recorded once for each of several sizes, and other sizes are padded to these. It ends with the argmax of the
logits, which greedy requests draw. While a step is recorded, each operation is intercepted (``recorder``) and its
result gets the memory that it has in all replays (``arena``). A replay writes tokens, positions and block tables to the
static inputs and calls the list; the attention kernels read the current numbers of decodes and of spans of prompts from
the inputs.

A recording is checked before it is used: its first replay, with other tokens than it was recorded with, must give the
logits of the model itself. A model whose operations depend on values is not recorded.

For a model with recurrent layers only decodes are recorded: steps in which each row is one token that is not its
request's first. The rows' state slots are a static input; padding reads and writes slot 0. Unlike keys and values,
states are changed by a step, so they are restored before a step is computed again.
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
from roseplay.kernels.cpu.attention.plan import SHORT_QUERIES, StaticPlan
from roseplay.kernels.cpu.recorder import NotReplayableError, Recorder
from roseplay.kernels.replace_modules import same
from roseplay.model.accelerator import Computed, Forward
from roseplay.model.batch import HostBatch, Ints
from roseplay.model.device_errors import is_out_of_memory
from roseplay.model.padding import dummy_batch, pad
from roseplay.model.stateful import use_static_slots
from roseplay.model.states import StatePool

try:
    from roseplay.kernels.cpu import argmax
except ImportError:  # Numba is an extra
    argmax = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

# Tokens of the steps that are recorded. Other sizes are padded: below 12, where a step takes as long as reading the
# weights, by at most a third; above, by fewer tokens than Python's share of a step is worth, which is small above the
# last size.
SIZES = (*range(1, 9), *range(12, 33, 4), *range(40, 65, 8), *range(80, 129, 16), *range(160, 513, 32))
MAX_PADDING = 2  # a step is padded to at most this many times its size while a better-fitting size is not recorded
# Numbers of tokens whose logits are computed if not all are wanted: with few rows, the last product takes as long as
# reading its weight.
_LOGITS = (16, 32, 64, 128, 256, 512)
WARM_UP_LEN = 3  # tokens of the requests, in one block each, with which ``warm_up`` records decodes


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """Options for when steps are recorded, and which are replayed.

    Attributes:
        record_after: steps of a size that run unrecorded first: recording and checking take as long as a few steps,
            which delays tokens.
        max_unwanted: the most tokens of padding in a step while a better-fitting size is not recorded, and the most
            tokens whose logits are computed without being wanted.
        warm_up_tokens: the largest size that is recorded at the start.
        warm_up_s: seconds after which no further size is recorded at the start.
    """

    record_after: int = 4
    max_unwanted: int = 32
    warm_up_tokens: int = 32
    warm_up_s: float = 0.5


class RecordedStep:
    """A recorded step of one size: its static inputs, its tape, and the logits that it computes.

    Args:
        num_logits: the number of tokens whose logits it computes; its number of tokens for all of them.
        tables: ``[tokens, most blocks]``, static block tables, whose memory all sizes share.
        stateful: the model has recurrent layers, so that only decodes are recorded.

    Attributes:
        checked: whether a replay gave the model's logits, for steps without and with prompts.
    """

    def __init__(self, num_logits: int, tables: Ints, block_size: int, *, stateful: bool) -> None:
        self.tape = tape.Tape()
        self.checked = {False: False, True: False}
        self._tables, self._block_size = tables, block_size
        self._arrays = np.zeros((3, len(tables)), np.int64)
        self._inputs = torch.from_numpy(self._arrays)
        self._logits_rows = torch.zeros(num_logits, dtype=torch.int64) if num_logits < len(tables) else None
        self._state_slots = torch.zeros(len(tables), dtype=torch.int64) if stateful else None
        self._num_logits = num_logits
        self._logits = torch.empty(0)
        self._argmax: torch.Tensor | None = None
        self._plan: StaticPlan | None = None

    @property
    def takes_prompts(self) -> bool:
        """Whether prompts longer than ``SHORT_QUERIES`` can be replayed."""
        return self._plan is not None and self._plan.in_place

    def record(self, host: HostBatch, arena: Arena, forward: Forward) -> torch.Tensor:
        """Run the step and record its calls; returns the wanted logits. Raises ``NotReplayableError``."""
        batch = self._load(host).upload(torch.device("cpu"))
        batch.input_ids, batch.positions, batch.slot_mapping = self._inputs
        batch.logits_rows = self._logits_rows
        self._plan = StaticPlan(batch, self._tables)
        if self._state_slots is not None:
            use_static_slots(batch, self._state_slots)
        arena.reset()
        with tape.record(self.tape), Recorder(arena, self.tape.calls):
            self._logits = forward(batch)
            if argmax is not None and argmax.can_argmax(self._logits):
                self._argmax = argmax.argmax(self._logits)
        self.tape.join()
        batch.memo.clear()
        if arena.in_use > 1 + (self._argmax is not None):
            gc.collect()
        if arena.in_use != 1 + (self._argmax is not None):  # only the logits and their argmax may be left
            raise NotReplayableError("it keeps tensors of a step for the next one")
        return self._wanted(host).logits

    def replay(self, host: HostBatch) -> Computed:
        """Replay the step with another batch; returns the wanted logits, valid until the next replay of any size."""
        assert self._plan is not None, "record it first"
        self._plan.refill(self._load(host))
        self.tape.replay()
        return self._wanted(host)

    def _load(self, host: HostBatch) -> HostBatch:
        """Copy the batch to the static inputs; returns it padded with tokens that are written to block 0."""
        size, wanted = len(self._tables), len(host.logits_rows)
        num_logits = wanted if self._logits_rows is None else self._num_logits
        if host.num_tokens < size or wanted < num_logits:
            rows = size if host.decodes_only else host.num_rows + (host.num_tokens < size)
            host = pad(host, num_tokens=size, num_rows=rows, num_logits=num_logits, block_size=self._block_size)
        self._arrays[0], self._arrays[1], self._arrays[2] = host.input_ids, host.positions, host.slot_mapping
        if self._logits_rows is not None:
            self._logits_rows.numpy()[:] = host.logits_rows
        if self._state_slots is not None:
            self._state_slots.numpy()[:] = host.state_slots
        return host

    def _wanted(self, host: HostBatch) -> Computed:
        rows = host.logits_rows.tolist()
        if self._logits_rows is None and rows != list(range(len(rows))):
            return Computed(self._logits.index_select(0, torch.from_numpy(host.logits_rows)), replayed=True)
        if len(rows) == self._num_logits:
            return Computed(self._logits, replayed=True, argmax=self._argmax)
        argmax = None if self._argmax is None else self._argmax[: len(rows)]
        return Computed(self._logits[: len(rows)], replayed=True, argmax=argmax)


class RecordedSteps:
    """The recorded steps of a model, one for each of ``SIZES``: recorded by ``warm_up``, or while serving.

    Args:
        forward: computes a batch's logits, ``[wanted, vocabulary]``.
        max_model_len: tokens of the longest request; ``block_size``: of a block.
        options: when to record and replay.
        states: the states that ``forward`` reads and writes; None for a model without recurrent layers.

    Attributes:
        decodes_only: whether only decodes are recorded.
        refused: why steps are not recorded; None if they are.
    """

    def __init__(
        self,
        forward: Forward,
        max_model_len: int,
        block_size: int,
        options: RecordingOptions,
        states: StatePool | None = None,
    ) -> None:
        self._forward, self._block_size, self._options = forward, block_size, options
        longest = max(max_model_len, options.max_unwanted)  # of a request, or of padding
        # Rows that are never written take no memory: the system allocates pages on the first write.
        self._tables = np.zeros((SIZES[-1], -(-longest // block_size)), np.int64)
        self._arena = Arena()
        self._steps: dict[tuple[int, int], RecordedStep] = {}  # by numbers of tokens and of logits
        self._seen: Counter[int] = Counter()  # by the number of tokens
        self._takes_prompts = True  # until a recording shows that prompts cannot be replayed
        self._states = states
        self.decodes_only = states is not None
        self.refused: str | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def warm_up(self, reporter: Reporter) -> None:
        """Record and check the smallest sizes, on block 0, which no request owns."""
        until = time.perf_counter() + self._options.warm_up_s
        sizes = [size for size in SIZES if size <= self._options.warm_up_tokens]
        reporter.begin("warm-up", 2 * len(sizes), "steps")
        for size in sorted(sizes, key=lambda size: size & (size - 1) > 0):
            for position in range(1, WARM_UP_LEN):  # the first run records, the second checks
                if self.refused or time.perf_counter() >= until:
                    return
                self._seen[size] = self._options.record_after
                self.run(self._decodes(size, position))
                reporter.advance()

    def _decodes(self, size: int, position: int) -> HostBatch:
        settings = {"row_tokens": 1, "block_size": WARM_UP_LEN, "num_logits": size}
        return dummy_batch(size, **settings, start=position, token=position - 1)

    def run(self, host: HostBatch) -> Computed | None:
        """Returns the step's logits; None if the step must be run by the model."""
        if self.refused or not self._fits(host):
            return None
        at = bisect_left(SIZES, host.num_tokens)
        key, prompts = self._key(SIZES[at], host), _has_prompts(host)
        step = self._steps.get(key)
        if step is None or not step.checked[prompts]:
            if not len(host.logits_rows):
                return None  # without logits a recording cannot be checked
            self._seen[SIZES[at]] += step is None
            if step is not None or self._seen[SIZES[at]] > self._options.record_after:
                logits = self._record_or_check(key, host)
                return None if logits is None else Computed(logits, replayed=False)
            most = min(MAX_PADDING * host.num_tokens, host.num_tokens + self._options.max_unwanted)
            larger = (self._steps.get(self._key(other, host)) for other in SIZES[at:] if other <= most)
            step = next((step for step in larger if step is not None and step.checked[prompts]), None)
        return None if step is None else step.replay(host)

    def _fits(self, host: HostBatch) -> bool:
        """Returns whether a recorded step can compute the batch."""
        if host.num_tokens > SIZES[-1] or not host.batched_append or host.placeholder_positions.size:
            return False
        if self.decodes_only and not host.continues_by_one:
            return False
        return self._takes_prompts or not _has_prompts(host)

    def _key(self, size: int, host: HostBatch) -> tuple[int, int]:
        """Returns the numbers of tokens and of logits of the recording of ``size`` tokens for the batch."""
        wanted = len(host.logits_rows)
        if size - wanted <= self._options.max_unwanted:
            return size, size
        return size, min(size, _LOGITS[bisect_left(_LOGITS, wanted)])

    def _record_or_check(self, key: tuple[int, int], host: HostBatch) -> torch.Tensor | None:
        """Record a step, or check a recorded one; returns the wanted logits, or None if the model must compute them."""
        states = self._read_states(host)
        try:
            return self._check(self._steps[key], host, states) if key in self._steps else self._record(key, host)
        except Exception as error:  # an error of the step itself is raised again when the model runs it
            self._write_states(host, states)
            if is_out_of_memory(error):
                raise
            self._refuse(str(error))
            return None

    def _record(self, key: tuple[int, int], host: HostBatch) -> torch.Tensor | None:
        """Record a step; returns the wanted logits, or None if its prompts turn out not to be recordable."""
        size, num_logits = key
        step = RecordedStep(num_logits, self._tables[:size], self._block_size, stateful=self.decodes_only)
        logits = step.record(host, self._arena, self._forward)
        if not step.takes_prompts:
            self._takes_prompts = False
            if _has_prompts(host):
                return None
        self._steps[key] = step
        return logits

    def _check(self, step: RecordedStep, host: HostBatch, states: list[torch.Tensor]) -> torch.Tensor:
        """Run the replay and the model; returns the model's logits. Raises ``NotReplayableError`` if they differ.

        Args:
            states: the rows' states before the step.
        """
        replayed = step.replay(host).logits.clone()
        replayed_states = self._read_states(host)
        self._write_states(host, states)
        logits = self._forward(host.upload(torch.device("cpu")))
        if logits.isnan().any():
            return logits  # they cannot be compared
        if not same(logits, replayed):
            raise NotReplayableError("a replay gave other logits")
        for expected, state in zip(self._read_states(host), replayed_states, strict=True):
            if not same(
                expected.to(logits.dtype), state.to(logits.dtype)
            ):  # they are computed from numbers of that dtype
                raise NotReplayableError("a replay left other states")
        step.checked[_has_prompts(host)] = True
        return logits

    def _read_states(self, host: HostBatch) -> list[torch.Tensor]:
        """Returns copies of the states of a batch's rows, in all layers."""
        if self._states is None:
            return []
        slots = torch.from_numpy(host.state_slots)
        return [state for layer in self._states.shapes for state in self._states.read(layer, slots)]

    def _write_states(self, host: HostBatch, states: list[torch.Tensor]) -> None:
        """Set the states of a batch's rows to what ``_read_states`` returned."""
        if self._states is None:
            return
        slots, iterator = torch.from_numpy(host.state_slots), iter(states)
        for layer, shapes in self._states.shapes.items():
            self._states.write(layer, slots, [next(iterator) for _ in shapes])

    def _refuse(self, why: str) -> None:
        self.refused = why
        self._steps.clear()
        self._arena, self._tables = Arena(), self._tables[:0].copy()
        logger.warning("steps are not replayed, the model's code runs in each: %s", why)


def _has_prompts(host: HostBatch) -> bool:
    """Returns whether some rows attend in spans of queries rather than token by token."""
    return not host.decodes_only and int(np.diff(host.cu_seqlens_q).max()) > SHORT_QUERIES
