"""KV blocks in host memory, to which the blocks of preempted requests are copied.

On a GPU the memory is pinned, and copies are enqueued on the current stream: they are in order with the steps, and the
host does not wait for them. On a CPU it is ordinary memory, and the same copies are made at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from roseplay.model.upload import to_device

Pairs = Sequence[tuple[int, int]]


class HostPool:
    """Host memory for blocks of a KV cache.

    A block is contiguous there, in all layers of one shape, so that one copy moves it.

    Args:
        pools: the cache's memory: for each shape ``[members, num_blocks, heads, block_size, dim]``.
        num_blocks: number of blocks in host memory.
        at_once_bytes: copied together, which takes as much memory on the device; at least one block is.

    Raises ``RuntimeError`` if there is no memory for them.
    """

    def __init__(self, pools: Sequence[torch.Tensor], num_blocks: int, at_once_bytes: int = 32 * 2**20) -> None:
        self._pools = pools
        self._at_once_bytes = at_once_bytes
        self._host = [_host_memory(pool, num_blocks) for pool in pools]

    def swap(self, out: Pairs, into: Pairs) -> None:
        """Copy blocks out, then blocks in.

        Args:
            out: (block, host block) pairs.
            into: (host block, block) pairs.
        """
        for pool, host in zip(self._pools, self._host, strict=True):
            for part in self._parts(out, host):
                blocks = to_device([block for block, _ in part], torch.int64, pool.device)
                rows = pool.index_select(1, blocks).transpose(0, 1)
                if pool.is_cuda:
                    rows = rows.contiguous()  # so that each run is one asynchronous copy
                for at, first, count in _runs([host_block for _, host_block in part]):
                    host[first : first + count].copy_(rows[at : at + count], non_blocking=True)
        for pool, host in zip(self._pools, self._host, strict=True):
            for part in self._parts(into, host):
                rows = torch.empty((len(part), *host.shape[1:]), dtype=pool.dtype, device=pool.device)
                for at, first, count in _runs([host_block for host_block, _ in part]):
                    rows[at : at + count].copy_(host[first : first + count], non_blocking=True)
                blocks = to_device([block for _, block in part], torch.int64, pool.device)
                pool.index_copy_(1, blocks, rows.transpose(0, 1))

    def _parts(self, pairs: Pairs, host: torch.Tensor) -> Iterator[Pairs]:
        count = max(1, self._at_once_bytes // (host[0].numel() * host.itemsize))
        for begin in range(0, len(pairs), count):
            yield pairs[begin : begin + count]


def _host_memory(pool: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Returns ``[num_blocks, members, heads, block_size, dim]``."""
    members, _, *block = pool.shape
    return torch.empty((num_blocks, members, *block), dtype=pool.dtype, pin_memory=pool.is_cuda)


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Returns the runs of consecutive numbers: (index of the first, its number, count)."""
    begin = 0
    for end in range(1, len(blocks) + 1):
        if end == len(blocks) or blocks[end] != blocks[end - 1] + 1:
            yield begin, blocks[begin], end - begin
            begin = end
