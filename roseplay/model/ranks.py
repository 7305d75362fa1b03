"""The group of processes of tensor parallelism: joining it, and summing, gathering and broadcasting between them."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path

import torch
import torch.distributed as dist

# A collective operation that takes longer fails. The engine detects a frozen step long before that.
TIMEOUT = datetime.timedelta(minutes=15)


class Ranks:
    """The processes that hold the parts of a model, seen from one of them.

    Before ``join`` nothing is exchanged: ``sum`` returns this process's own part, and ``gather`` repeats it. So each
    process can load, try and prepare its part at its own pace; results then have the right shape, but no meaning.

    Args:
        rank: the rank of this process; rank 0 leads.
        size: the number of processes.
        device: the device that this process computes on.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._joined = False

    @property
    def transport(self) -> str:
        """The library that connects the processes."""
        return "NCCL" if self.device.type == "cuda" else "gloo"

    def join(self, store: str) -> None:
        """Wait until all processes have called this, and exchange data from now on.

        Args:
            store: path of a file, the same for all processes, through which they find each other.
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
        """Leave the group; nothing is exchanged any more."""
        if self._joined:
            self._joined = False
            with contextlib.suppress(Exception):  # another process may have ended first
                dist.destroy_process_group()

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """Returns the sum of all processes' tensors of one shape; may be computed in place."""
        if self._joined:
            part = part.contiguous()
            dist.all_reduce(part)
        return part

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """Returns all processes' tensors of one shape, concatenated in the last dimension in the order of ranks."""
        parts = [part] * self.size
        if self._joined:
            part = part.contiguous()
            parts = [torch.empty_like(part) for _ in range(self.size)]
            dist.all_gather(parts, part)
        return torch.cat(parts, -1)

    def broadcast(self, values: torch.Tensor) -> None:
        """Overwrite ``values`` with those of rank 0."""
        dist.broadcast(values, 0)
