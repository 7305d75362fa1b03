"""A model runner whose model is split over several processes (tensor parallelism).

Rank 0 has the ``ParallelRunner``, which plans, packs and samples like any runner. The other ranks each have a
``Follower``: the runner sends them each operation on its model or KV cache, the name of one of the follower's methods
and its arguments, and they perform it on theirs. Small data
is sent from host to host. Data that may exist only on a GPU, such as tokens that the last step drew and the host has
not read, is broadcast from device to device. So only rank 0 needs to know about requests, seeds and saved logits, and
rounding differences between the processes cannot make them draw different tokens.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from roseplay.config import EngineConfig
from roseplay.core.info import Choice, EngineInfo
from roseplay.core.progress import Reporter
from roseplay.core.step import DeviceLostError
from roseplay.model import gpu_memory
from roseplay.model.attention.interface import Paged, default_backend, make_backend
from roseplay.model.batch import Ints, PagedBatch
from roseplay.model.forward import PackedForward
from roseplay.model.kv_cache import KVCache, LayerShape, cache_dtype
from roseplay.model.loaded_model import LoadedModel
from roseplay.model.ranks import Ranks
from roseplay.model.runner import ModelRunner
from roseplay.model.upload import pack_ints


@dataclass(frozen=True, slots=True)
class Forward:
    """A batch to run the model on. Token ids, positions, slots and logits rows are broadcast separately."""

    cu_seqlens_q: Ints
    seq_lens: Ints
    block_tables: Ints
    num_logits: int | None  # number of rows of logits that are wanted; None for all
    batched_append: bool


class Followers:
    """Rank 0's connections to the other ranks.

    Args:
        connections: a connection to each of them.
        gone: says in a few words which process has ended, or returns None if none has. It may wait a moment for one.
    """

    def __init__(self, ranks: Ranks, connections: Sequence[Connection], gone: Callable[[], str | None]) -> None:
        self.ranks = ranks
        self._connections = connections
        self._gone = gone

    def tell(self, operation: str, *arguments: Any) -> None:
        """Make all followers call one of their methods. Raises ``DeviceLostError`` if one has ended."""
        data = pickle.dumps((operation, arguments))
        try:
            for connection in self._connections:
                connection.send_bytes(data)
        except OSError as error:
            raise self.lost(error) from error

    def ask(self, operation: str, *arguments: Any) -> list[Any]:
        """The same for a method that returns something; returns what they return."""
        self.tell(operation, *arguments)
        try:
            return [connection.recv() for connection in self._connections]
        except (EOFError, OSError) as error:
            raise self.lost(error) from error

    def lost(self, error: Exception) -> DeviceLostError:
        """Returns the error for a step that failed halfway, which leaves the ranks out of step with each other."""
        cause = self._gone() or f"rank 0 failed ({type(error).__name__}: {error})"
        return DeviceLostError(f"a tensor parallel step cannot be finished: {cause}")


class LeadingForward(PackedForward):
    """Runs rank 0's part of a model, and tells the other ranks to run theirs."""

    def __init__(self, model: Any, followers: Followers) -> None:
        super().__init__(model)
        self._followers = followers

    def __call__(self, paged: Paged) -> torch.Tensor:
        batch, rows = paged.batch, paged.batch.logits_rows
        tables, count = batch.host_block_tables, None if rows is None else rows.shape[0]
        parts = [batch.input_ids, batch.positions, batch.slot_mapping, *([] if rows is None else [rows])]
        message = Forward(batch.host_cu_seqlens_q, batch.host_seq_lens, tables, count, batch.batched_append)
        self._followers.tell("forward", message)
        try:
            self._followers.ranks.broadcast(torch.cat(parts))
            return super().__call__(paged)
        except Exception as error:
            raise self._followers.lost(error) from error


class LeadingCache(KVCache):
    """Rank 0's part of a KV cache; the other ranks copy the same blocks."""

    def __init__(self, followers: Followers, shapes: dict[int, LayerShape], **sizes: Any) -> None:
        super().__init__(shapes, **sizes)
        self._followers = followers

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        super().copy_blocks(copies)
        if copies:
            self._followers.tell("copy_blocks", copies)

    def swap(self, out: list[tuple[int, int]], into: list[tuple[int, int]]) -> None:
        super().swap(out, into)
        if out or into:
            self._followers.tell("swap", out, into)


class ParallelRunner(ModelRunner):
    """The runner of rank 0. Steps are not replayed, because a recording cannot contain what the ranks exchange.

    Args:
        followers: the other ranks.
        end: ends the followers; called by ``close``.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        followers: Followers,
        end: Callable[[], None],
        reporter: Reporter | None = None,
    ) -> None:
        self._followers, self._end = followers, end
        super().__init__(loaded, config, reporter)

    def info(self) -> EngineInfo:
        ranks, info = self._followers.ranks, super().info()
        split = Choice("tensor parallel", f"{ranks.size} processes, connected by {ranks.transport}")
        return dataclasses.replace(info, choices=(*info.choices, split))

    def close(self) -> None:
        end = self._end
        super().close()
        end()

    def _make_forward(self) -> PackedForward:
        return LeadingForward(self.loaded.model, self._followers)

    def _make_cache(self, num_blocks: int) -> KVCache:
        loaded, sizes = self.loaded, {"num_blocks": num_blocks, "num_host_blocks": self.num_host_blocks}
        sizes["block_size"] = self.block_size
        self._followers.tell("make_cache", sizes)
        return LeadingCache(self._followers, loaded.kv_shapes, **sizes, dtype=self._kv_dtype, device=loaded.device)

    def _kv_bytes_per_token(self) -> int:
        """Returns the bytes per token in the memory that rank 0 sees: on a CPU that of all ranks, on a GPU its own."""
        return super()._kv_bytes_per_token() * (1 if self._on_gpu else self._followers.ranks.size)

    def _kv_cache_bytes(self, utilization: float, activation_bytes: int) -> int:
        size = super()._kv_cache_bytes(utilization, activation_bytes)
        return min(size, *self._followers.ask("kv_cache_bytes", utilization, activation_bytes))


class Follower:
    """Does what rank 0 says: runs this rank's part of the model on this rank's part of the KV cache."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig, ranks: Ranks) -> None:
        self._loaded, self._config, self._ranks = loaded, config, ranks
        self._forward = PackedForward(loaded.model)

    @torch.inference_mode()
    def run(self, connection: Connection) -> None:
        """Handle messages until rank 0 closes the connection; raises whatever handling one raises."""
        while True:
            try:
                operation, arguments = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                return
            reply = getattr(self, operation)(*arguments)
            if reply is not None:
                connection.send(reply)

    def make_cache(self, sizes: dict[str, int]) -> None:
        """Replace the KV cache by a new one of these sizes."""
        loaded, attention = self._loaded, self._config.attention
        dtype = cache_dtype(self._config, loaded.dtype)
        self._cache = KVCache(loaded.kv_shapes, **sizes, dtype=dtype, device=loaded.device)
        self._backend = make_backend(default_backend(loaded.device) if attention == "auto" else attention, self._cache)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        self._cache.copy_blocks(copies)

    def swap(self, out: list[tuple[int, int]], into: list[tuple[int, int]]) -> None:
        self._cache.swap(out, into)

    def kv_cache_bytes(self, utilization: float, activation_bytes: int) -> int:
        gpu_memory.empty_cache()
        return gpu_memory.kv_cache_bytes(utilization, activation_bytes, self._loaded.device)

    def forward(self, batch: Forward) -> None:
        self._forward(Paged(self._backend, self._receive(batch)))

    def _receive(self, forward: Forward) -> PagedBatch:
        device, tables = self._loaded.device, forward.block_tables
        arrays = [forward.cu_seqlens_q, forward.seq_lens, tables]
        packed = pack_ints(arrays, device).to(device, non_blocking=True)
        cu_seqlens_q, seq_lens, flat_tables = packed.split([array.size for array in arrays])
        tokens = int(forward.cu_seqlens_q[-1])
        sizes = [tokens, tokens, tokens, forward.num_logits or 0]
        values = torch.empty(sum(sizes), dtype=torch.int64, device=device)
        self._ranks.broadcast(values)
        ids, positions, slots, rows = values.split(sizes)
        return PagedBatch(
            input_ids=ids,
            positions=positions,
            slot_mapping=slots,
            cu_seqlens_q=cu_seqlens_q,
            seq_lens=seq_lens,
            block_tables=flat_tables.view(tables.shape),
            logits_rows=None if forward.num_logits is None else rows,
            host_cu_seqlens_q=forward.cu_seqlens_q,
            host_seq_lens=forward.seq_lens,
            host_block_tables=tables,
            batched_append=forward.batched_append,
        )
