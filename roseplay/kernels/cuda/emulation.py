"""The GPU's way of running steps on a CPU: graphs that record and call again, and steps that run one ahead.

It makes nothing faster. It lets tests, and ``roseplay bench gpu --device cpu``, go through the same code as a GPU does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from roseplay.kernels.cuda.accelerator import CudaAccelerator
from roseplay.kernels.cuda.graphs import Graph, RecordedGraph, make_buckets
from roseplay.model.accelerator import accelerator_for, register_accelerator


@contextlib.contextmanager
def emulate_gpu(decodes: tuple[int, ...] = (1, 2, 4, 8, 16), mixed: tuple[int, ...] = (16, 64)) -> Iterator[None]:
    """Models that are loaded meanwhile, in this process, run their steps as on a GPU.

    Args:
        decodes, mixed: sizes of graphs, see ``make_buckets``; capturing those of a GPU takes longer than tests run.
    """
    cpu = accelerator_for(torch.device("cpu"))

    class EmulatedGPU(CudaAccelerator):
        buckets = make_buckets(decodes, mixed)
        prepare = staticmethod(cpu.prepare)
        argmax = staticmethod(cpu.argmax)

        @staticmethod
        def graph_factory(device: torch.device) -> Callable[[], Graph]:
            return RecordedGraph

    register_accelerator("cpu", EmulatedGPU)
    try:
        yield
    finally:
        register_accelerator("cpu", cpu)
