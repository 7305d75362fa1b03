"""A model runner whose model is split over processes (tensor parallelism).

Rank 0 has the ``ParallelRunner``, which plans, packs and samples as any runner does. The other ranks have a ``Follower``:
whatever the runner does to its model and its KV cache it tells them first, and they do the same to theirs. Small things are
sent from host to host. What may be on a GPU only, such as tokens that the last step drew and the host has not read, is
broadcast from device to device. So nothing but rank 0 needs to know of requests, seeds and saved logits, and processes that
differ in a last bit cannot come to different tokens.
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
from roseplay.model.attention import Paged, default_backend, make_backend
from roseplay.model.batch import Ints, PagedBatch
from roseplay.model.forward import PackedForward
from roseplay.model.kv_cache import KVCache, LayerShape
from roseplay.model.loaded_model import LoadedModel
from roseplay.model.ranks import Ranks
from roseplay.model.runner import ModelRunner
from roseplay.model.upload import pack_ints


@dataclass(frozen=True, slots=True)
class MakeCache:
    """Replace the KV cache by a new one."""

    num_blocks: int


@dataclass(frozen=True, slots=True)
class CopyBlocks:
    """``KVCache.copy_blocks``."""

    copies: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class AskMemory:
    """``gpu_memory.kv_cache_bytes``; the follower replies with the number."""

    utilization: float
    activation_bytes: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Run the model on a batch: its arrays on the host. Token ids, positions, slots and the rows of logits are broadcast.

    Attributes:
        num_logits: rows of logits that are wanted; None for all.
    """

    cu_seqlens_q: Ints
    seq_lens: Ints
    block_tables: Ints
    num_logits: int | None
    batched_append: bool


class Followers:
    """The other ranks, as rank 0 sees them.

    Args:
        connections: to each of them.
        gone: says which of them has ended, in a few words; None if none has. It may wait a moment for that.
    """

    def __init__(self, ranks: Ranks, connections: Sequence[Connection], gone: Callable[[], str | None]) -> None:
        self.ranks = ranks
        self._connections = connections
        self._gone = gone

    def tell(self, message: Any) -> None:
        """Send them a message. Raises ``DeviceLostError`` when one has ended."""
        data = pickle.dumps(message)
        try:
            for connection in self._connections:
                connection.send_bytes(data)
        except OSError as error:
            raise self.lost(error) from error

    def ask(self, question: Any) -> list[Any]:
        """Send them a question; returns their replies. Raises ``DeviceLostError`` when one has ended."""
        self.tell(question)
        try:
            return [connection.recv() for connection in self._connections]
        except (EOFError, OSError) as error:
            raise self.lost(error) from error

    def lost(self, error: Exception) -> DeviceLostError:
        """The error for a step that failed in the middle: what the ranks exchange next would not fit together."""
        cause = self._gone() or f"rank 0 failed ({type(error).__name__}: {error})"
        return DeviceLostError(f"a tensor parallel step cannot be finished: {cause}")


class LeadingForward(PackedForward):
    """Runs this rank's part of a model, and tells the others to run theirs."""

    def __init__(self, model: Any, followers: Followers) -> None:
        super().__init__(model)
        self._followers = followers

    def __call__(self, paged: Paged) -> torch.Tensor:
        batch, rows = paged.batch, paged.batch.logits_rows
        tables, count = batch.host_block_tables, None if rows is None else rows.shape[0]
        parts = [batch.input_ids, batch.positions, batch.slot_mapping, *([] if rows is None else [rows])]
        message = Forward(batch.host_cu_seqlens_q, batch.host_seq_lens, tables, count, batch.batched_append)
        self._followers.tell(message)
        try:
            self._followers.ranks.broadcast(torch.cat(parts))
            return super().__call__(paged)
        except Exception as error:
            raise self._followers.lost(error) from error


class LeadingCache(KVCache):
    """This rank's part of a KV cache; the others copy the same blocks."""

    def __init__(self, followers: Followers, shapes: dict[int, LayerShape], **sizes: Any) -> None:
        super().__init__(shapes, **sizes)
        self._followers = followers

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        super().copy_blocks(copies)
        if copies:
            self._followers.tell(CopyBlocks(copies))


class ParallelRunner(ModelRunner):
    """Rank 0's runner. Steps are not replayed: what the ranks exchange is in no recording.

    Args:
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
        self._followers.tell(MakeCache(num_blocks))
        return LeadingCache(
            self._followers, self.loaded.kv_shapes, **cache_sizes(self.loaded, num_blocks, self.block_size)
        )

    def _kv_bytes_per_token(self) -> int:
        """On a CPU all parts are in the same memory; a GPU has one of them."""
        return super()._kv_bytes_per_token() * (1 if self._on_gpu else self._followers.ranks.size)

    def _kv_cache_bytes(self, utilization: float, activation_bytes: int) -> int:
        own = super()._kv_cache_bytes(utilization, activation_bytes)
        return min(own, *self._followers.ask(AskMemory(utilization, activation_bytes)))


class Follower:
    """Does what rank 0 tells: runs this rank's part of the model on this rank's part of the KV cache."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig, ranks: Ranks) -> None:
        self._loaded, self._config, self._ranks = loaded, config, ranks
        self._forward = PackedForward(loaded.model)

    @torch.inference_mode()
    def run(self, connection: Connection) -> None:
        """Follow until rank 0 closes the connection; raises what a message raises."""
        while True:
            try:
                message = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                return
            reply = self._handle(message)
            if reply is not None:
                connection.send(reply)

    def _handle(self, message: Any) -> int | None:
        match message:
            case MakeCache(num_blocks):
                self._make_cache(num_blocks)
            case CopyBlocks(copies):
                self._cache.copy_blocks(copies)
            case AskMemory(utilization, activation_bytes):
                torch.cuda.empty_cache()
                return gpu_memory.kv_cache_bytes(utilization, activation_bytes, self._loaded.device)
            case Forward():
                self._forward(Paged(self._backend, self._receive(message)))
        return None

    def _make_cache(self, num_blocks: int) -> None:
        loaded, config = self._loaded, self._config
        self._cache = KVCache(loaded.kv_shapes, **cache_sizes(loaded, num_blocks, config.block_size))
        attention = default_backend(loaded.device) if config.attention == "auto" else config.attention
        self._backend = make_backend(attention, self._cache)

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


def cache_sizes(loaded: LoadedModel, num_blocks: int, block_size: int) -> dict[str, Any]:
    """Arguments of ``KVCache`` for a loaded model."""
    return {"num_blocks": num_blocks, "block_size": block_size, "dtype": loaded.dtype, "device": loaded.device}
