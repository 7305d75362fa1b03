"""KV blocks in host memory, to which the blocks of preempted requests are copied.

On a GPU the memory is pinned, and copies are enqueued on the current stream: they are in order with the steps, and the
host does not wait for them. On a CPU it is ordinary memory, and the same copies are made at once.

Pinning takes some 0.4 s for each GiB, in which no step would run. Memory is therefore allocated in slabs, as blocks of them
are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from roseplay.model.upload import to_device

Pairs = Sequence[tuple[int, int]]
Slabs = dict[int, torch.Tensor]  # by number, each [blocks, members, heads, block_size, dim]


class HostPool:
    """Host memory for blocks of a KV cache.

    A block is contiguous there, in all layers of one shape, so that one copy moves it.

    Args:
        pools: the cache's memory: for each shape ``[members, num_blocks, heads, block_size, dim]``.
        num_blocks: number of blocks in host memory.
        at_once_bytes: copied together, which takes as much memory on the device; at least one block is.
        slab_bytes: of all layers, allocated together; at least one block is.
    """

    def __init__(
        self,
        pools: Sequence[torch.Tensor],
        num_blocks: int,
        at_once_bytes: int = 32 * 2**20,
        slab_bytes: int = 64 * 2**20,
    ) -> None:
        self._pools, self._num_blocks = pools, num_blocks
        self._at_once_bytes = at_once_bytes
        self._slab_blocks = max(1, slab_bytes // max(1, sum(_block_bytes(pool) for pool in pools)))
        self._host: list[Slabs] = [{} for _ in pools]

    @property
    def allocated_bytes(self) -> int:
        """Bytes of host memory that are allocated."""
        return sum(slab.numel() * slab.itemsize for slabs in self._host for slab in slabs.values())

    def swap(self, out: Pairs, into: Pairs) -> None:
        """Copy blocks out, then blocks in. Raises ``RuntimeError`` if there is no memory to copy them to.

        Args:
            out: (block, host block) pairs.
            into: (host block, block) pairs.
        """
        self._allocate({host_block // self._slab_blocks for _, host_block in out})
        for pool, slabs in zip(self._pools, self._host, strict=True):
            for part in self._parts(out, pool):
                blocks = to_device([block for block, _ in part], torch.int64, pool.device)
                rows = pool.index_select(1, blocks).transpose(0, 1)
                if pool.is_cuda:
                    rows = rows.contiguous()  # so that each run is one asynchronous copy
                for at, first, count in self._runs([host_block for _, host_block in part]):
                    self._at(slabs, first, count).copy_(rows[at : at + count], non_blocking=True)
        for pool, slabs in zip(self._pools, self._host, strict=True):
            for part in self._parts(into, pool):
                rows = torch.empty((len(part), *pool[:, 0].shape), dtype=pool.dtype, device=pool.device)
                for at, first, count in self._runs([host_block for host_block, _ in part]):
                    rows[at : at + count].copy_(self._at(slabs, first, count), non_blocking=True)
                blocks = to_device([block for _, block in part], torch.int64, pool.device)
                pool.index_copy_(1, blocks, rows.transpose(0, 1))

    def _allocate(self, numbers: set[int]) -> None:
        for pool, slabs in zip(self._pools, self._host, strict=True):
            for number in numbers - slabs.keys():
                count = min(self._slab_blocks, self._num_blocks - number * self._slab_blocks)
                slabs[number] = torch.empty((count, *pool[:, 0].shape), dtype=pool.dtype, pin_memory=pool.is_cuda)

    def _at(self, slabs: Slabs, first: int, count: int) -> torch.Tensor:
        """Returns the memory of consecutive host blocks of one slab."""
        number, begin = divmod(first, self._slab_blocks)
        return slabs[number][begin : begin + count]

    def _parts(self, pairs: Pairs, pool: torch.Tensor) -> Iterator[Pairs]:
        count = max(1, self._at_once_bytes // _block_bytes(pool))
        for begin in range(0, len(pairs), count):
            yield pairs[begin : begin + count]

    def _runs(self, blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Returns the runs of consecutive host blocks in one slab: (index of the first, its number, count)."""
        begin = 0
        for end in range(1, len(blocks) + 1):
            if end == len(blocks) or blocks[end] != blocks[end - 1] + 1 or blocks[end] % self._slab_blocks == 0:
                yield begin, blocks[begin], end - begin
                begin = end


def _block_bytes(pool: torch.Tensor) -> int:
    """Returns the bytes of a block in all layers of a pool."""
    return pool[:, 0].numel() * pool.itemsize
