"""Runs steps on a CPU as on a GPU: with graphs, which call the recorded function again, and with steps that run ahead.

This is not faster: it tests the GPU's code on any machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from roseplay.kernels.cuda.accelerator import CudaAccelerator
from roseplay.kernels.cuda.attention.backend import interprets
from roseplay.kernels.cuda.graphs import Graph, make_buckets
from roseplay.model.accelerator import Accelerator, accelerator_for, register_accelerator


class RecordedGraph:
    """A graph for a CPU: a replay calls the captured function again, on the same buffers."""

    def __init__(self) -> None:
        self._run: Callable[[], None] | None = None

    def capture(self, run: Callable[[], None]) -> None:
        run()
        self._run = run

    def replay(self) -> None:
        if self._run is None:
            raise RuntimeError("nothing was captured")
        self._run()


@contextlib.contextmanager
def emulate_gpu(
    decodes: tuple[int, ...] = (1, 2, 4, 8, 16),
    mixed: tuple[int, ...] = (16, 64),
    *,
    kernels: bool = False,
    graph: Callable[[], Graph] = RecordedGraph,
) -> Iterator[None]:
    """While entered, models that this process loads on the CPU run their steps as on a GPU.

    Args:
        decodes, mixed: sizes of graphs, see ``make_buckets``; few by default, because capturing takes time.
        kernels: whether operations are fused and tokens drawn by a GPU's kernels, which needs Triton's interpreter
            (``TRITON_INTERPRET=1``) and is slow; else by a CPU's.
        graph: makes the empty graph of a size.

    Raises ``RuntimeError`` if Triton does not interpret ``kernels``.
    """
    cpu = accelerator_for(torch.device("cpu"))
    if kernels and not interprets():
        raise RuntimeError("a GPU's kernels run on a CPU only in Triton's interpreter: set TRITON_INTERPRET=1")
    own: type[Accelerator] = CudaAccelerator if kernels else cpu

    class EmulatedGPU(CudaAccelerator):
        buckets = make_buckets(decodes, mixed)
        prepare = staticmethod(own.prepare)
        argmax = staticmethod(cpu.argmax)
        sample = staticmethod(own.sample)

        @staticmethod
        def graph_factory(device: torch.device) -> Callable[[], Graph]:
            return graph

    register_accelerator("cpu", EmulatedGPU)
    try:
        yield
    finally:
        register_accelerator("cpu", cpu)
