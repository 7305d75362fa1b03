"""Compiles Triton kernels in several threads at once.

Triton compiles a kernel when it is first launched, one after another: more than a second of a CPU's time for each variant of
attention with Qwen3-8B's heads. About 85% of it is spent in LLVM and ptxas, which run without Python's lock.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

_MOST_THREADS = 16


class CompileAhead:
    """Collects the kernels that launches need, then compiles them.

    Attributes:
        kernels: by name and by the key of the variant, what Triton needs to compile it.
    """

    def __init__(self) -> None:
        self.kernels: dict[tuple[str, str], tuple[Any, str]] = {}

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """While entered, kernels that are not compiled yet are collected if this thread launches them, and not launched."""
        import triton

        runtime, thread = triton.knobs.runtime, threading.get_ident()
        before = runtime.jit_cache_hook

        def collect(*, key: str, fn: Any, compile: dict[str, Any], **others: Any) -> bool:
            if before is not None and before(key=key, fn=fn, compile=compile, **others):
                return True
            if threading.get_ident() != thread:
                return False
            self.kernels[fn.name, key] = fn.jit_function, compile["specialization_data"]
            return True

        runtime.jit_cache_hook = collect
        try:
            yield
        finally:
            runtime.jit_cache_hook = before

    def compile(self, device: torch.device, threads: int | None = None) -> None:
        """Compile what was collected. Raises whatever the compiler raises."""

        def enter() -> None:
            if device.type == "cuda":
                torch.cuda.set_device(device)  # each thread has its own, and Triton compiles for the current one

        if not self.kernels:
            return
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = threads or min(_MOST_THREADS, cores, len(self.kernels))
        with ThreadPoolExecutor(threads, "compile", initializer=enter) as pool:
            for compiling in [pool.submit(kernel.preload, data) for kernel, data in self.kernels.values()]:
                compiling.result()
