"""Runs kernels compiled by Numba on all threads: one kernel, or a program of many, one after another.

Waking a thread takes as long as a small kernel, so threads are woken once for a whole step of a model. A program is a
list of kernels, each split into pieces. Every thread takes its own share of a kernel's pieces in order, because neighbours
read neighbouring memory, then what is left of others' shares. It waits until all are done; meanwhile it prefetches what it
reads first in the next product. A delayed thread takes fewer pieces, and no other waits for one that has not started.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from roseplay.kernels.cpu import simd, tape
from roseplay.kernels.cpu.simd import address, advance, call, compiled, pointer, prefetch
from roseplay.model.batch import Ints

# Numba's simplest threading layer allows one call at a time; two engines of a process would only slow each other down.
_one_at_a_time = threading.Lock()
_of_thread = threading.local()

# A kernel's row in a program, in int64: the address of its arguments, its pieces, the address of their multiple, where threads
# prefetch, the bytes from share to share, and those fetched of each; from the next cache line on, pieces done, and taken by share.
_ARGUMENTS, _PIECES, _ROWS, _FETCH, _APART, _FETCH_BYTES, _DONE, _TAKEN = 0, 1, 2, 3, 4, 5, 8, 9
_ONE = np.ones(1, np.int64)
_MOST_FETCHED = 2**19  # bytes a thread, half of a second-level cache
_LINE, _AT_ONCE = 64, 256  # bytes
# Reads of a counter, about ten microseconds, before a waiting thread yields its core.
SPIN_LIMIT = 500


class Work:
    """A kernel with its arguments; calling it computes all pieces, on as many threads as torch uses.

    Args:
        kernel: a C function (``simd.kernel``) of a pointer to int64, its own address followed by ``arguments``, and of
            the number of a piece.
        hold: objects that own memory the arguments point to; referenced as long as the call can be repeated.
        light: the kernel takes less time than waking a thread, so it wakes none.
        rows: int64 ``[1]``, a number of rows that may change between calls; there are ``pieces`` for each row.
        reads: what the kernel reads from memory, to be prefetched before it starts.
    """

    def __init__(
        self,
        kernel: Any,
        arguments: Sequence[int],
        pieces: int,
        hold: tuple[Any, ...] = (),
        light: bool = False,
        rows: Ints | None = None,
        reads: torch.Tensor | None = None,
    ) -> None:
        # Not the tensor, because nothing may keep a step's own tensors.
        self.reads = None if reads is None else (reads.data_ptr(), reads.nbytes)
        self.arguments, self.pieces = np.array([kernel.address, *arguments], np.int64), pieces
        self.rows = _ONE if rows is None else rows
        self.hold, self.light = hold, light or (pieces == 1 and rows is None)

    def __call__(self) -> None:
        pieces = self.pieces * int(self.rows[0])
        if self.light or pieces <= 1 or torch.get_num_threads() == 1:
            serial_for()(self.arguments, pieces)
        else:
            Program([self])()

    def run(self) -> None:
        """Compute all pieces, and again whenever the step that is being recorded is replayed."""
        tape.run(self)

    @staticmethod
    def joined(works: list[Work]) -> Program:
        return Program(works)


class Program:
    """Kernels one after another, each started when the one before it is done; calling it runs them."""

    def __init__(self, works: list[Work]) -> None:
        self._works = works
        self._threads = 1 if all(work.light for work in works) else torch.get_num_threads()
        size = -(-(_TAKEN + self._threads) // 8) * 8
        self._rows = _aligned(len(works) * size).reshape(-1, size)
        self._rows[:, :_FETCH] = [(work.arguments.ctypes.data, work.pieces, work.rows.ctypes.data) for work in works]
        begin = apart = 0
        for row, work in zip(self._rows[::-1], works[::-1], strict=True):
            row[_FETCH : _FETCH_BYTES + 1] = begin, apart, min(apart, _MOST_FETCHED)
            if work.reads is not None:
                begin, apart = work.reads[0], work.reads[1] // self._threads
        loop = _program_loop().address
        self._arguments = np.array([loop, self._rows.ctypes.data, len(works), _yield_address(), self._threads, size])

    def __call__(self) -> None:
        with _one_at_a_time:
            self._rows[:, _DONE:] = 0
            if self._threads == 1:
                serial_for()(self._arguments, 1)
            else:
                _use_threads(torch.get_num_threads())
                parallel_for()(self._arguments, self._threads)


def _aligned(numbers: int) -> Any:
    """Returns int64 zeros, aligned to a cache line."""
    memory = np.zeros(numbers + _LINE // 8, np.int64)
    skip = -memory.ctypes.data % _LINE // 8
    return memory[skip : skip + numbers]


def _use_threads(number: int) -> None:
    """Make Numba use as many threads as torch.

    Numba's first call starts its threads and sets OpenMP's number of threads, which is also torch's if both use the
    same OpenMP library; this sets it back.
    """
    if getattr(_of_thread, "threads", None) == number:
        return
    numba.set_num_threads(min(number, numba.config.NUMBA_NUM_THREADS))
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)
    _of_thread.threads = number


@cache
def _yield_address() -> int:
    """Returns the address of ``sched_yield``; 0 if the system has none."""
    function = getattr(ctypes.CDLL(None), "sched_yield", None) if platform.system() != "Windows" else None
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function else 0


@cache
def parallel_for() -> Any:
    """Returns a function that calls a kernel for all pieces, in parallel. It is compiled once for all kernels, because
    a parallel loop takes longer to compile than they do."""

    def parallel_for_pieces(arguments, pieces):
        for piece in numba.prange(pieces):
            call(arguments[0], address(arguments, 0), np.int64(piece))

    return compiled(parallel_for_pieces, parallel=True)


@cache
def serial_for() -> Any:
    """Returns a function that calls a kernel for all pieces, one after another."""

    def serial_for_pieces(arguments, pieces):
        for piece in range(pieces):
            call(arguments[0], address(arguments, 0), np.int64(piece))

    return compiled(serial_for_pieces)


@intrinsic  # type: ignore[untyped-decorator]
def atomic_increment(context, counter):
    """Add 1 to a counter; returns its previous value."""

    def generate(context, builder, signature, args):
        return builder.atomic_rmw("add", args[0], ir.Constant(ir.IntType(64), 1), "acq_rel")

    return types.int64(counter), generate


@intrinsic  # type: ignore[untyped-decorator]
def atomic_load(context, counter):
    """Returns a counter's value; later reads see what other threads wrote before they incremented it."""

    def generate(context, builder, signature, args):
        return builder.load_atomic(args[0], "acquire", 8)

    return types.int64(counter), generate


@intrinsic  # type: ignore[untyped-decorator]
def _pause(context):
    """The pause instruction of x86, for loops that spin."""

    def generate(context, builder, signature, args):
        if platform.machine().lower() in ("x86_64", "amd64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate


@cache
def _program_loop() -> Any:
    """Returns the kernel that each thread of a program runs."""

    def program_loop(args, thread):
        rows, threads, size = pointer(args[1], types.int64), args[4], args[5]
        begun = fetched = to_fetch = np.int64(0)
        for number in range(args[2]):
            row = advance(rows, number * size)
            arguments, done = pointer(row[_ARGUMENTS], types.int64), advance(row, _DONE)
            pieces = row[_PIECES] * pointer(row[_ROWS], types.int64)[0]
            for other in range(threads):
                share = (thread + other) % threads
                first, taken = pieces * share // threads, advance(row, _TAKEN + share)
                most = pieces * (share + 1) // threads - first
                while atomic_load(taken) < most:
                    piece = atomic_increment(taken)
                    if piece < most:
                        call(arguments[0], arguments, first + piece)
                        atomic_increment(done)
            waited = 0
            if row[_FETCH] != begun:
                begun = row[_FETCH]
                fetched, to_fetch = begun + row[_APART] * thread, begun + row[_APART] * thread + row[_FETCH_BYTES]
            while atomic_load(done) < pieces:
                waited += 1
                if fetched < to_fetch:
                    prefetch(pointer(fetched, types.uint8), _AT_ONCE)
                    fetched += _AT_ONCE
                elif args[3] and waited % SPIN_LIMIT == 0:
                    call(args[3], arguments, thread)
                else:
                    _pause()

    return simd.kernel(program_loop)
