"""Tensor parallelism between processes: who they are, and what they sum, gather and broadcast."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path

import torch
import torch.distributed as dist

# A collective operation that takes longer fails. The engine notices a frozen step long before.
TIMEOUT = datetime.timedelta(minutes=15)


class Ranks:
    """The processes that hold the parts of a model, seen from one of them.

    Until ``join`` nothing is exchanged: a sum is this process's own part, and what is gathered repeats it. So a model can be
    loaded, tried and prepared by each process at its own pace; what it computes then has the right shape only.

    Args:
        rank: of this process; 0 leads.
        size: the number of processes.
        device: where this process computes.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._joined = False

    @property
    def transport(self) -> str:
        """The library that connects the processes."""
        return "NCCL" if self.device.type == "cuda" else "gloo"

    def join(self, store: str) -> None:
        """Wait for the other processes, each of which calls this, and exchange data from now on.

        Args:
            store: path of a file, for all of them the same one, through which they find each other.
        """
        dist.init_process_group(
            self.transport.lower(),
            init_method=Path(store).as_uri(),
            rank=self.rank,
            world_size=self.size,
            timeout=TIMEOUT,
            device_id=self.device if self.device.type == "cuda" else None,
        )
        self._joined = True

    def leave(self) -> None:
        """Exchange nothing any more."""
        if self._joined:
            self._joined = False
            with contextlib.suppress(Exception):  # another process may have ended first
                dist.destroy_process_group()

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all processes' tensors of one shape; may be computed in place."""
        if self._joined:
            part = part.contiguous()
            dist.all_reduce(part)
        return part

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """All processes' tensors of one shape, in the order of their ranks, concatenated in the last dimension."""
        parts = [part] * self.size
        if self._joined:
            part = part.contiguous()
            parts = [torch.empty_like(part) for _ in range(self.size)]
            dist.all_gather(parts, part)
        return torch.cat(parts, -1)

    def broadcast(self, values: torch.Tensor) -> None:
        """Overwrite ``values`` by those of rank 0."""
        dist.broadcast(values, 0)
