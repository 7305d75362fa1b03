"""Memory for a recorded step's tensors, which are at the same addresses in every replay."""

from __future__ import annotations

import math
import weakref

import torch

from roseplay.model import huge_pages

_ALIGNED = 64


class Arena:
    """Allocates tensors, and reuses the memory of those that are no longer referenced.

    ``reset`` frees all memory for another step: only one step at a time can use it.
    """

    def __init__(self) -> None:
        self._memory = [huge_pages.aligned(0)]
        self._free: list[tuple[int, int, int]] = []  # memory, begin, end
        self._allocated: dict[int, tuple[int, int, int]] = {}
        self.reset()

    @property
    def in_use(self) -> int:
        """The number of allocated tensors that are still referenced."""
        return len(self._allocated)

    def reset(self) -> None:
        self._allocated = {}
        self._free = [(i, 0, len(memory)) for i, memory in enumerate(self._memory)]

    def tensor(self, like: torch.Tensor) -> torch.Tensor:
        """Returns an uninitialised tensor of ``like``'s sizes, strides and dtype."""
        size = _bytes_of(like)
        place = self._take(math.ceil(size / _ALIGNED) * _ALIGNED)
        where, begin, _ = place
        part = self._memory[where][begin : begin + size]
        allocated = self._allocated
        allocated[id(part)] = place
        weakref.finalize(part, self._give_back, allocated, id(part)).atexit = False
        return torch.frombuffer(part, dtype=like.dtype).as_strided(like.shape, like.stride())

    def alias(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a tensor on the memory of ``x`` that does not keep it in use; ``x`` itself if not the arena's."""
        if x.is_mkldnn:
            return x
        if not x.numel():  # it has no address
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
        at = x.data_ptr()
        for memory in self._memory:
            begin = memory.ctypes.data
            if begin <= at < begin + len(memory):
                part = memory[at - begin : at - begin + _bytes_of(x)]
                return torch.frombuffer(part, dtype=x.dtype).as_strided(x.shape, x.stride())
        return x

    def _take(self, size: int) -> tuple[int, int, int]:
        for number, (where, begin, end) in enumerate(self._free):
            if end - begin >= size:
                self._free[number] = (where, begin + size, end)
                return where, begin, begin + size
        self._memory.append(huge_pages.aligned(max(size, 2**22)))
        self._free.append((len(self._memory) - 1, size, len(self._memory[-1])))
        return len(self._memory) - 1, 0, size

    def _give_back(self, allocated: dict[int, tuple[int, int, int]], key: int) -> None:
        place = allocated.pop(key)
        if allocated is not self._allocated:  # allocated before the last reset
            return
        where, begin, end = place
        merged = []
        for other in self._free:
            if other[0] == where and other[2] == begin:
                begin = other[1]
            elif other[0] == where and other[1] == end:
                end = other[2]
            else:
                merged.append(other)
        self._free = sorted([*merged, (where, begin, end)])


def _bytes_of(x: torch.Tensor) -> int:
    """Returns the bytes from the first element of a tensor to the end of its last."""
    if not x.numel():
        return x.element_size()
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return (last + 1) * x.element_size()
