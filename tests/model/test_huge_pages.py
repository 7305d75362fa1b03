"""Memory for weights and KV blocks."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from roseplay.model import huge_pages

SHAPES = [
    ((3, 5), torch.float32),
    ((0, 4), torch.uint8),
    ((700, 1000), torch.bfloat16),
    ((9 * 2**20,), torch.uint8),
] * 30


def resident() -> int:
    """The memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_tensors_are_zero_aligned_and_apart() -> None:
    tensors = [huge_pages.zeros(shape, dtype) for shape, dtype in SHAPES]
    for number, (tensor, (shape, dtype)) in enumerate(zip(tensors, SHAPES, strict=True)):
        assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
        assert not tensor.any() and tensor.data_ptr() % 64 == 0
        tensor.fill_(number)
    assert all((tensor == number).all() for number, tensor in enumerate(tensors))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="it is read from Linux' /proc")
def test_memory_is_freed_with_its_tensors() -> None:
    before = resident()
    tensor = huge_pages.zeros((2**28,), torch.uint8).fill_(1)
    assert resident() > before + 0.9 * 2**28
    if huge_pages.page_bytes() > mmap.PAGESIZE:
        assert "AnonHugePages:         0 kB" not in Path("/proc/self/smaps_rollup").read_text()
    del tensor
    assert resident() < before + 0.1 * 2**28


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(MemoryError):
        huge_pages.zeros((2**60,), torch.uint8)
