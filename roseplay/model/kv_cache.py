"""The paged KV cache: one pool of blocks for all layers, and each layer's own key and value shapes."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch

from roseplay.config import EngineConfig
from roseplay.host_memory import USABLE, free_memory
from roseplay.model import huge_pages
from roseplay.model.device_errors import is_out_of_memory
from roseplay.model.host_pool import HostPool
from roseplay.model.upload import to_device

_SCALES = torch.float32


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer caches per token: ``num_kv_heads`` keys of ``k_dim`` and values of ``v_dim`` numbers.

    ``values_in_keys``: the values are the first ``v_dim`` numbers of the keys, and not stored again (MLA's latents).
    """

    num_kv_heads: int
    k_dim: int
    v_dim: int
    values_in_keys: bool = False

    @property
    def numbers_per_token(self) -> int:
        return self.num_kv_heads * (self.k_dim + (0 if self.values_in_keys else self.v_dim))


def cache_dtype(config: EngineConfig, dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of the KV cache of a model that computes in ``dtype``.

    Raises ``KVCacheFormatError`` for int8 with a model in float16, in which scaled probabilities would be rounded to 0.
    """
    if config.kv_dtype == "int8" and dtype == torch.float16:
        raise KVCacheFormatError(
            "kv_dtype int8 needs a model in float32 or bfloat16, this one is in float16: set dtype"
        )
    return torch.int8 if config.kv_dtype == "int8" else dtype


def bytes_per_token(shapes: dict[int, LayerShape], dtype: torch.dtype) -> int:
    """Returns bytes of one token's keys and values in all layers, with their scales if they are stored in int8."""
    numbers = sum(shape.numbers_per_token for shape in shapes.values()) * dtype.itemsize
    scales = sum(shape.num_kv_heads * (1 if shape.values_in_keys else 2) for shape in shapes.values())
    return numbers + (scales * _SCALES.itemsize if dtype == torch.int8 else 0)


class KVCache:
    """Keys and values of all layers, in blocks of ``block_size`` tokens.

    ``keys[layer]`` is ``[num_blocks, num_kv_heads, block_size, k_dim]``, ``values[layer]`` the same with ``v_dim``.
    Blocks are head-major: the tokens of one head in one block are contiguous, as attention reads them. Layers of one shape
    are slices of one tensor, so that one operation copies a block in all of them. Values that are in the keys are views of
    them.

    In int8, a number is its code times the scale of its token and head. ``scales[layer]`` are those of the keys and of the
    values, float32 ``[num_blocks, num_kv_heads, block_size, 1]``; other caches have none.

    The memory is zeroed, so that padding never reads NaN. Raises ``KVCacheSizeError`` if it cannot be allocated.

    Args:
        shapes: the shape of each layer, by ``layer_idx`` of its attention module; kept as an attribute.
        num_blocks: number of blocks, including block 0, which no request owns.
        dtype: of keys and values, see ``cache_dtype``.
        num_host_blocks: number of blocks in host memory for ``swap``, which is allocated as they are used.
    """

    def __init__(
        self,
        shapes: dict[int, LayerShape],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_host_blocks: int = 0,
    ) -> None:
        self.shapes = shapes
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}
        self._pools: list[torch.Tensor] = []  # each [members, num_blocks, heads, block_size, dim], of scales as well
        self._num_host_blocks = num_host_blocks

        key_scales: dict[int, torch.Tensor] = {}
        value_scales: dict[int, torch.Tensor] = {}
        members: dict[tuple[int, int, torch.dtype], list[tuple[dict[int, torch.Tensor], int]]] = {}
        for layer, shape in sorted(shapes.items()):
            stored = [(self.keys, key_scales, shape.k_dim), (self.values, value_scales, shape.v_dim)]
            for tensors, scales, dim in stored[: 1 if shape.values_in_keys else 2]:
                members.setdefault((shape.num_kv_heads, dim, dtype), []).append((tensors, layer))
                if dtype == torch.int8:
                    members.setdefault((shape.num_kv_heads, 1, _SCALES), []).append((scales, layer))
        for (heads, dim, kind), places in members.items():
            pool = self._zeros((len(places), num_blocks, heads, block_size, dim), kind)
            self._pools.append(pool)
            for i, (tensors, layer) in enumerate(places):
                tensors[layer] = pool[i]
        self.values |= {layer: self.keys[layer][..., : s.v_dim] for layer, s in shapes.items() if s.values_in_keys}
        self.scales = {layer: (scales, value_scales.get(layer, scales)) for layer, scales in key_scales.items()}
        self._host = HostPool(self._pools, num_host_blocks)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = math.prod(shape) * dtype.itemsize
        try:
            if size < 2**63:  # torch cannot represent more
                if self.device.type != "cpu":
                    return torch.zeros(shape, dtype=dtype, device=self.device)
                return huge_pages.zeros(shape, dtype)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        raise KVCacheSizeError(
            f"{self.num_blocks:,} KV blocks need {size / 2**30:,.1f} GiB in one piece, which {self.device} does not have:"
            " set num_blocks or kv_cache_memory lower"
        )

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy blocks in all layers, with one read and one write per distinct shape.

        All sources are read before any destination is written. Raises ``ValueError`` for a destination given twice
        or a block id outside 1 to ``num_blocks - 1``.

        Args:
            copies: (source, destination) pairs.
        """
        if not copies:
            return
        sources, destinations = zip(*copies, strict=True)
        if len(set(destinations)) != len(destinations):
            raise ValueError(f"two copies write into one block: {copies}")
        if min(sources + destinations) < 1 or max(sources + destinations) >= self.num_blocks:
            raise ValueError(f"a copy is outside the blocks 1 to {self.num_blocks - 1}: {copies}")
        source, destination = to_device([sources, destinations], torch.int64, self.device)
        for pool in self._pools:
            pool.index_copy_(1, destination, pool.index_select(1, source))

    def swap(self, out: list[tuple[int, int]], into: list[tuple[int, int]]) -> None:
        """Copy blocks to host memory, and then blocks from there, in all layers.

        On a GPU the copies are enqueued on the current stream, through pinned memory: they are in order with the steps.
        Raises ``ValueError`` for a block that does not exist, or one that is written twice.

        Args:
            out: (block, host block) pairs.
            into: (host block, block) pairs.
        """
        if not out and not into:
            return
        blocks, host_blocks = [b for b, _ in out] + [b for _, b in into], [h for _, h in out] + [h for h, _ in into]
        written = max(len(out) - len({h for _, h in out}), len(into) - len({b for _, b in into}))
        if written or min(blocks) < 1 or max(blocks) >= self.num_blocks:
            raise ValueError(f"blocks are to be swapped out as {out} and in as {into}")
        if min(host_blocks) < 0 or max(host_blocks) >= self._num_host_blocks:
            raise ValueError(f"host blocks {host_blocks} are to be used, of {self._num_host_blocks}")
        self._host.swap(out, into)


class KVCacheFormatError(ValueError):
    """The model's keys and values cannot be stored in the chosen format; the message is one line and says what to do."""


class KVCacheSizeError(ValueError):
    """The settings leave no room for a KV cache that is large enough; the message is one line and says what to do."""


def choose_host_blocks(config: EngineConfig, token_bytes: int, *, has_states: bool) -> int:
    """Returns how many blocks ``config.swap_space`` holds, within half of the host's free memory.

    It is 0 for a model with recurrent layers: their states are not swapped.
    """
    if has_states:
        return 0
    return min(config.swap_space, free_memory() // 2) // (token_bytes * config.block_size)


def choose_num_blocks(
    config: EngineConfig, token_bytes: int, max_model_len: int, *, free_bytes: int, on_gpu: bool
) -> int:
    """Returns the number of blocks in the pool, including block 0.

    This is ``config.num_blocks`` if set, else as many as ``config.kv_cache_memory`` holds. With neither, it is enough
    for 64 requests of ``max_model_len`` tokens (at least 512 blocks) within a quarter of the free memory (on a GPU,
    for 256 requests within all of it), but always enough for one request of ``max_model_len`` tokens.

    Args:
        token_bytes: bytes of one token's keys and values in all layers, see ``bytes_per_token``.
        free_bytes: free memory of the host (see ``free_memory``), or what the KV cache may take of a GPU's memory (see
            ``gpu_memory.kv_cache_bytes``); may be negative.

    Raises ``KVCacheSizeError``, giving the numbers, if ``kv_cache_memory`` does not hold a single usable block, the host
    has no memory for the blocks, or by default one request of ``max_model_len`` tokens does not fit.
    """
    block_bytes, num_blocks = token_bytes * config.block_size, config.num_blocks
    if num_blocks is None and config.kv_cache_memory is not None:
        num_blocks = config.kv_cache_memory // block_bytes
        if num_blocks < 2:
            raise KVCacheSizeError(
                f"kv_cache_memory is {config.kv_cache_memory:,} bytes, but a block of {config.block_size} tokens takes"
                f" {block_bytes:,}: give at least {2 * block_bytes:,} (one block is reserved)"
            )
    if num_blocks is not None:
        # Linux would end the process while it writes to the pool; on a GPU, allocating it fails.
        if not on_gpu and sys.platform == "linux" and num_blocks * block_bytes > USABLE * free_bytes:
            what, lower = f"{num_blocks:,} KV blocks need", "num_blocks or kv_cache_memory, or batch sizes and lengths"
            raise _too_large(what, num_blocks * block_bytes, free_bytes, lower)
        return num_blocks
    one_request = -(-max_model_len // config.block_size) + 1
    wanted = max(512, (256 if on_gpu else 64) * (one_request - 1) + 1)
    fits = int(free_bytes if on_gpu else free_bytes * 0.25) // block_bytes
    if fits < one_request and one_request * block_bytes > 0.9 * free_bytes:
        what = f"one request of {max_model_len:,} tokens needs"
        raise _too_large(what, one_request * block_bytes, free_bytes, "max_model_len, or num_blocks")
    return max(one_request, min(wanted, fits))


def _too_large(what: str, needed: int, free: int, lower: str) -> KVCacheSizeError:
    gib, free_gib = needed / 2**30, max(0, free) / 2**30
    return KVCacheSizeError(f"{what} {gib:,.1f} GiB of KV cache, but only {free_gib:,.1f} GiB are free: lower {lower}")
