"""Asynchronous copies between host and device, through pinned memory and in stream order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch


def to_device(
    values: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Returns a tensor of ``values`` on ``device``. torch keeps the pinned host copy until it has been read."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def pack_ints(arrays: Sequence[npt.NDArray[np.int64]], device: torch.device) -> torch.Tensor:
    """Returns the concatenated arrays, int64, on the host; in pinned memory if ``device`` is a GPU."""
    packed = torch.empty(sum(array.size for array in arrays), dtype=torch.int64, pin_memory=device.type == "cuda")
    np.concatenate([array.reshape(-1) for array in arrays], out=packed.numpy())
    return packed


class Download:
    """Asynchronous copies of tensors to the host; ``read`` waits for them.

    One event is recorded after all copies, so that the host waits only once.
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if not any(tensor.is_cuda for tensor in tensors):
            self._host = list(tensors)
            return
        self._host = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
        for host, tensor in zip(self._host, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def read(self) -> list[torch.Tensor]:
        if self._event is not None:
            self._event.synchronize()
        return self._host
