"""Measures a part of ``roseplay bench gpu`` in a process of its own, which may crash, lose the GPU or be ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from roseplay.bench.gpu_machine import Figures, Machine, Part, error_of, measure

_END_S = 5.0
# Imported once, by the server whose forks measure the parts.
_LIBRARIES = ["torch", "transformers", "roseplay.kernels", "roseplay.bench.gpu"]


def emulated(machine: Machine) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which a machine without a GPU runs steps as one with a GPU does."""
    if machine.on_gpu:
        return contextlib.nullcontext()
    from roseplay.kernels.cuda.emulation import emulate_gpu

    return emulate_gpu()


def measure_apart(part: Part, machine: Machine, limit_s: float, context: Any = None) -> Iterator[tuple[str, Figures]]:
    """Yields the rows of a part as they end. After ``limit_s`` seconds its processes are ended, and a last row says so.

    Args:
        context: starts the process, as of ``multiprocessing``.
    """
    context = context or _context()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(part, machine, theirs), name=f"roseplay-bench-{part.name}")
    process.start()
    theirs.close()  # else the pipe would stay open after the process has ended
    deadline = time.monotonic() + limit_s
    try:
        while True:
            if not ours.poll(max(0.0, deadline - time.monotonic())):
                yield part.name, {"error": f"it was ended after its {limit_s:,.0f} s"}
                return
            try:
                yield ours.recv()
            except (EOFError, OSError):
                break
        process.join(_END_S)
        if process.exitcode:
            yield part.name, {"error": f"its process ended with code {process.exitcode}"}
    finally:
        _end(process)


def _context() -> Any:
    """Returns a way to start processes that have loaded the libraries, without a GPU being used before they start."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LIBRARIES)
    return context


def _run(part: Part, machine: Machine, connection: Connection) -> None:
    """Measure a part and send its rows."""
    if hasattr(os, "setsid"):
        os.setsid()  # so that the processes of its engines can be ended with it
    try:
        with emulated(machine):
            for row in measure(part, machine):
                connection.send(row)
    except Exception as error:
        connection.send((part.name, error_of(error)))
    connection.close()


def _end(process: Any) -> None:
    """End a process, and the engines that it has started."""
    if process.is_alive():
        with contextlib.suppress(OSError, AttributeError):  # it has no group yet, or this system has none
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    process.join(_END_S)
