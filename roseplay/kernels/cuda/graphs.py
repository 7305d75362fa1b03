"""Whole steps as CUDA graphs: the launches of a step are captured once for each of several sizes, and replayed.

A model's step takes hundreds of small launches, many of which take the host longer than the GPU. A CUDA graph is one
launch, and reads its inputs from the addresses at which it was captured: here a set of static buffers, to which every
step's padded batch is copied. As in vLLM and nano-vllm, there is a graph for each of a few padded sizes, captured
largest first, all in one memory pool. Mixed steps of prompts and decodes are replayed too, which needs attention whose
launches are the same for any batch that fits the buffers, such as the Triton backend's.

For a model with recurrent layers only decodes are captured: steps in which each row is one token that is not its
request's first. The rows' state slots are a static input; padding reads and writes slot 0.
"""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, Protocol

import torch

from roseplay.core.progress import Reporter
from roseplay.model import exclusive, gpu_memory
from roseplay.model.accelerator import Forward
from roseplay.model.batch import Drawn, HostBatch, PagedBatch, put_drawn
from roseplay.model.device_errors import is_out_of_memory
from roseplay.model.padding import dummy_batch, pad
from roseplay.model.stateful import use_static_slots
from roseplay.model.states import StatePool
from roseplay.model.upload import pack_ints

logger = logging.getLogger(__name__)

# Padded sizes in tokens, for steps of decodes only and for mixed steps. Each mixed size has three numbers of rows: as
# many as there may be decodes, those of a default batch, and few, for steps of mostly prompts, for which attention uses
# larger tiles.
DECODES = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
MIXED = (32, 64, 128, 256, 384, 512, 768, 1024)
SOME_ROWS, TOKENS_OF_A_ROW, LEAST_FEW = 33, 128, 32
# Estimates of what the driver keeps of a captured kernel launch, and of the launches of a layer.
_KERNEL_BYTES, _KERNELS_OF_A_LAYER = 10 * 1024, 20


@dataclass(frozen=True, slots=True)
class Bucket:
    """A padded size: ``tokens`` in ``rows`` rows, with logits of ``logits`` tokens. Decode steps have as many rows as
    tokens."""

    tokens: int
    rows: int
    logits: int

    @property
    def decodes_only(self) -> bool:
        return self.tokens == self.rows

    def holds(self, host: HostBatch) -> bool:
        """Returns whether the step fits. In mixed steps, padding needs its own row."""
        if host.num_tokens > self.tokens or host.logits_rows.shape[0] > self.logits:
            return False
        return host.decodes_only if self.decodes_only else host.num_rows < self.rows


def make_buckets(decodes: tuple[int, ...] = DECODES, mixed: tuple[int, ...] = MIXED) -> list[Bucket]:
    """Returns buckets of decode steps, then of mixed ones, smallest first. Mixed ones have an extra row for padding."""
    buckets = [Bucket(tokens, tokens, tokens) for tokens in sorted(decodes)]
    for tokens in sorted(mixed):
        most = min(tokens, max(decodes))
        few = max(1, tokens // TOKENS_OF_A_ROW - 1) if tokens >= LEAST_FEW else most
        for held in sorted({rows for rows in (few, SOME_ROWS) if rows < most} | {most}):
            rows = held + 1
            buckets.append(Bucket(tokens, rows + (rows == tokens), held))
    return buckets


def _decodes_of(buckets: list[Bucket], requests: int) -> list[Bucket]:
    """Returns the decode buckets needed for up to ``requests`` requests, smallest first; at least one."""
    decodes = sorted((bucket for bucket in buckets if bucket.decodes_only), key=lambda bucket: bucket.rows)
    return [decodes[0], *(larger for smaller, larger in pairwise(decodes) if smaller.rows < requests)]


@dataclass(frozen=True, slots=True)
class _BufferSizes:
    """Sizes of ``StepGraphs``' buffers: numbers of a batch, rows and columns of block tables, rows of logits."""

    ints: int
    rows: int
    columns: int
    logits: int


def _buffer_sizes(buckets: list[Bucket], table_columns: int, block_size: int) -> _BufferSizes:
    most = max(buckets, key=_ints)
    columns = max(table_columns, -(-most.tokens // block_size))  # padding is a row of block 0 as well
    rows, logits = (max(getattr(bucket, name) for bucket in buckets) for name in ("rows", "logits"))
    return _BufferSizes(_ints(most), rows, columns, logits)


def expected_bytes(
    buckets: list[Bucket],
    *,
    table_columns: int,
    block_size: int,
    row_bytes: int,
    profile: gpu_memory.Profile,
    layers: int,
) -> int:
    """Returns about how many bytes of a GPU's memory graphs will take: buffers, the shared pool, and the driver's part.

    The pool holds what the largest size needs, whose logits are not among what a profiled step needs in general.

    Args:
        table_columns: blocks of the longest request.
        row_bytes: of a token's logits.
        profile: what the largest step needs without graphs.
        layers: of the model.
    """
    sizes = _buffer_sizes(buckets, table_columns, block_size)
    buffers = 8 * (sizes.ints + sizes.rows * sizes.columns) + sizes.logits * row_bytes
    share = min(1.0, max(bucket.tokens for bucket in buckets) / profile.tokens)
    pool = int(profile.activation_bytes * share) + sizes.logits * row_bytes
    return buffers + pool + len(buckets) * layers * _KERNELS_OF_A_LAYER * _KERNEL_BYTES


class Graph(Protocol):
    """The launches of a function, captured to be replayed."""

    def capture(self, run: Callable[[], None]) -> None: ...
    def replay(self) -> None: ...


@dataclass
class Pool:
    """What graphs share: memory, named by a handle of torch's allocator, and the stream that they are captured on."""

    handle: Any
    stream: torch.cuda.Stream


class CudaGraph:
    """A CUDA graph; graphs with the same ``pool`` share memory."""

    def __init__(self, pool: Pool) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._pool, self._stream = pool, pool.stream

    def capture(self, run: Callable[[], None]) -> None:
        """Run once without capturing, for first-time initialisation and to check that nothing waits for the device;
        then capture.

        Raises any exception of ``run``, and ``RuntimeError`` for operations that cannot be captured; torch's allocator
        and random generator are then as before.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), waiting_is_an_error():
            run()
        torch.cuda.synchronize()
        with exclusive.capturing, torch.cuda.stream(self._stream):
            try:
                self._graph.capture_begin(pool=self._pool.handle, capture_error_mode="thread_local")
                run()
                self._graph.capture_end()
            except BaseException:
                self._abandon()
                raise
        torch.cuda.synchronize()

    def _abandon(self) -> None:
        """End a capture that failed.

        If the capture has become invalid, ``capture_end`` raises before it informs torch's allocator and its default
        random generator. The allocator would continue to allocate from the graphs' pool and to keep freed memory, and
        the generator would refuse every random number outside a capture.
        """
        with contextlib.suppress(Exception):
            self._graph.capture_end()
        with contextlib.suppress(Exception):  # raises if the allocator has been informed
            end_allocation(self._pool.handle)
        self._graph.reset()
        self._pool.handle = torch.cuda.graph_pool_handle()  # the allocator may have given up the old one
        with contextlib.suppress(Exception):
            capture_nothing()

    def replay(self) -> None:
        self._graph.replay()


def capture_nothing() -> None:
    """Capture an empty graph on the current stream, whose end informs torch's default generator."""
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the graph is empty
        graph.capture_begin(capture_error_mode="thread_local")
        graph.capture_end()


def end_allocation(pool: Any) -> None:
    """Stop torch's allocator from allocating in a pool, and release the pool. Raises if it is not allocating there."""
    device = torch.cuda.current_device()
    torch._C._cuda_endAllocateToPool(device, pool)
    torch._C._cuda_releasePool(device, pool)


@contextlib.contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """While entered, torch raises ``RuntimeError`` for operations that wait for a CUDA device.

    This applies to all threads, so it takes the locks under which other engines load models and launch steps.
    """
    with exclusive.loading, exclusive.stepping:
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode")  # torch warns that it is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def cuda_graphs(device: torch.device) -> Callable[[], Graph]:
    """Returns a function that makes graphs that share one memory pool."""
    with torch.cuda.device(device):
        pool = Pool(torch.cuda.graph_pool_handle(), torch.cuda.Stream())
    return lambda: CudaGraph(pool)


class _OnDeviceOnly:
    """Replaces the host's copies of values that change from replay to replay: reading it raises ``RuntimeError``."""

    def _refuse(self, *args: Any) -> NoReturn:
        raise RuntimeError("it reads lengths or block tables on the host, which a graph cannot")

    __array__ = __len__ = __iter__ = __getitem__ = __getattr__ = _refuse
    __neg__ = __add__ = __sub__ = __floordiv__ = __gt__ = __lt__ = _refuse


def _reason(error: Exception) -> str:
    """Returns the error's first line and the line of code that raised it: torch does not name the operation."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    folder, file = os.path.split(where.filename)
    return (
        f"{type(error).__name__}: {error}".split("\n", 1)[0]
        + f" ({os.path.basename(folder)}/{file}:{where.lineno}: {where.line})"
    )


class StepGraphs:
    """Graphs of a model's steps by size, and their static buffers.

    Args:
        forward: computes a batch's logits, ``[len(batch.logits_rows), vocabulary]``.
        table_columns: blocks of the longest request.
        new_graph: makes an empty graph.
        buckets: sizes, see ``make_buckets``.
        states: the states that ``forward`` reads and writes; None for a model without recurrent layers.

    Attributes:
        buckets: the sizes that the model's steps can have.
        decodes_only: whether only decode steps are captured.
        refused: why there are no graphs; None if there are.
        too_large: sizes that there was no memory to capture.
    """

    def __init__(
        self,
        forward: Forward,
        *,
        table_columns: int,
        block_size: int,
        vocab_size: int,
        dtype: torch.dtype,
        device: torch.device,
        new_graph: Callable[[], Graph],
        buckets: list[Bucket],
        states: StatePool | None = None,
    ) -> None:
        self._forward = forward
        self._block_size = block_size
        self._device = device
        self._new_graph = new_graph
        self.buckets = buckets if states is None else _decodes_of(buckets, states.num_slots - 1)
        self.too_large: list[Bucket] = []
        self.decodes_only = states is not None
        self._graphs: dict[Bucket, Graph] = {}
        self.refused: str | None = None
        sizes = _buffer_sizes(self.buckets, table_columns, block_size)
        self._ints = torch.zeros(sizes.ints, dtype=torch.int64, device=device)
        self._tables = torch.zeros((sizes.rows, sizes.columns), dtype=torch.int64, device=device)
        self._logits = torch.zeros((sizes.logits, vocab_size), dtype=dtype, device=device)

    def __len__(self) -> int:
        return len(self._graphs)

    def capture(self, reporter: Reporter) -> None:
        """Capture all sizes, largest first, so that smaller ones reuse its memory. Writes only to block 0 of the KV cache
        and to state slot 0.

        Sizes for which there is no memory are left out (``too_large``). If the model cannot be captured, or none of the
        sizes, there are no graphs, and ``refused`` is the reason.
        """
        reporter.begin("warm-up", len(self.buckets), "steps")
        for bucket in sorted(self.buckets, key=lambda bucket: (bucket.tokens, bucket.rows), reverse=True):
            (batch, state_slots), graph = self._static_batch(bucket), self._new_graph()
            try:
                graph.capture(lambda batch=batch, slots=state_slots: self._run(batch, slots))  # type: ignore[misc]
            except Exception as error:
                self.refused = _reason(error)
                may_shrink = is_out_of_memory(error)
            else:
                self._graphs[bucket] = graph
                reporter.advance()
                continue
            if not may_shrink:
                self._graphs.clear()
                break
            self.too_large.append(bucket)
            if self._device.type == "cuda":
                gpu_memory.empty_cache()  # here, where no frame of the failed step references its tensors
        if self._graphs:
            self.refused = None
            if self.too_large:
                logger.warning("there is no memory for the graphs of %d sizes", len(self.too_large))
        else:  # the buffers are not needed
            self._ints, self._tables, self._logits = (x.new_empty(0) for x in (self._ints, self._tables, self._logits))
            logger.warning("steps are not replayed as graphs: %s", self.refused)

    def find(self, host: HostBatch) -> Bucket | None:
        """Returns the smallest size that holds the step; None if no graph can compute it."""
        if not host.cuda_graphs or not host.batched_append:
            return None
        if self.decodes_only and not host.continues_by_one:
            return None
        return next((bucket for bucket in self.buckets if bucket in self._graphs and bucket.holds(host)), None)

    def replay(self, bucket: Bucket, host: HostBatch, drawn: Drawn | None = None) -> torch.Tensor:
        """Returns the step's logits in the model's dtype, valid until the next replay."""
        self._load(bucket, host, drawn)
        self._graphs[bucket].replay()
        return self._logits[: host.logits_rows.shape[0]]

    def _run(self, batch: PagedBatch, state_slots: torch.Tensor) -> None:
        batch.memo.clear()  # written by an earlier run
        if self.decodes_only:
            use_static_slots(batch, state_slots)
        logits = self._forward(batch)
        self._logits[: logits.shape[0]].copy_(logits)

    def _static_batch(self, bucket: Bucket) -> tuple[PagedBatch, torch.Tensor]:
        """Returns views of the buffers, loaded with one token in block 0 and padding, and of the state slots."""
        padded = self._load(bucket, dummy_batch(1, row_tokens=1, block_size=self._block_size), None)
        views = self._ints[: _ints(bucket)].split(_sections(bucket))
        ids, positions, slots, cu_seqlens_q, seq_lens, rows, state_slots = views
        unknown: Any = _OnDeviceOnly()
        batch = PagedBatch(
            input_ids=ids,
            positions=positions,
            slot_mapping=slots,
            cu_seqlens_q=cu_seqlens_q,
            seq_lens=seq_lens,
            block_tables=self._tables[: bucket.rows],
            logits_rows=rows,
            host_cu_seqlens_q=padded.cu_seqlens_q,  # only determines whether all rows are single tokens, which is fixed
            host_seq_lens=unknown,
            host_block_tables=unknown,
            host_state_slots=unknown,
        )
        return batch, state_slots

    def _load(self, bucket: Bucket, host: HostBatch, drawn: Drawn | None) -> HostBatch:
        """Pad the step's batch and copy it to the buffers, with one copy from the host; returns the padded batch."""
        padded = pad(
            host, num_tokens=bucket.tokens, num_rows=bucket.rows, num_logits=bucket.logits, block_size=self._block_size
        )
        arrays = padded.arrays()
        arrays.insert(-3, padded.state_slots)
        packed = pack_ints(arrays, self._device).to(self._device, non_blocking=True)
        static, tables, placeholders, drawn_rows = packed.split([_ints(bucket), *(a.size for a in arrays[-3:])])
        rows, columns = padded.block_tables.shape
        self._ints[: _ints(bucket)].copy_(static)
        self._tables[:rows, :columns].copy_(tables.view(rows, columns))
        put_drawn(self._ints[: bucket.tokens], placeholders, drawn_rows, drawn)
        return padded


def _sections(bucket: Bucket) -> list[int]:
    """Returns the sizes of input_ids, positions, slot_mapping, cu_seqlens_q, seq_lens, logits_rows, state_slots."""
    return [bucket.tokens, bucket.tokens, bucket.tokens, bucket.rows + 1, bucket.rows, bucket.logits, bucket.rows]


def _ints(bucket: Bucket) -> int:
    """Returns the length of a bucket's static buffer, without block tables."""
    return sum(_sections(bucket))
