"""Kernels that all threads share: each piece runs once, one kernel after another, whichever threads take part."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="Numba is not installed")

from numba import types

from roseplay.kernels.cpu import parallel, residual_add, tape
from roseplay.kernels.cpu.simd import kernel, pointer
from tests.model.harness import torch_threads


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """The number of threads, which may exceed the number of cores."""
    with torch_threads(request.param):
        yield request.param


def _append(given, piece):
    """For a piece of a list of numbers, doubles each number and adds one."""
    numbers, pieces = given[2], given[3]
    values = pointer(given[1], types.int64)
    for i in range(numbers * piece // pieces, numbers * (piece + 1) // pieces):
        values[i] = 2 * values[i] + 1


def _shift(given, piece):
    """Replaces each number by its right neighbour, which is correct only if the previous kernel has finished."""
    numbers, pieces = given[3], given[4]
    values, out = pointer(given[1], types.int64), pointer(given[2], types.int64)
    for i in range(numbers * piece // pieces, numbers * (piece + 1) // pieces):
        out[i] = values[(i + 1) % numbers]


APPEND, SHIFT = kernel(_append), kernel(_shift)


def test_a_program_runs_kernels_in_order_and_each_piece_once(threads: int) -> None:
    values, shifted = np.arange(50), np.zeros(50, np.int64)
    recorded = tape.Tape()

    def step() -> None:
        for pieces in (1, 7, 50):
            places = values.ctypes.data, shifted.ctypes.data
            parallel.Work(APPEND, [places[0], 50, pieces], pieces).run()
            parallel.Work(SHIFT, [*places, 50, pieces], pieces, light=pieces == 7).run()
            parallel.Work(SHIFT, [places[1], places[0], 50, pieces], pieces).run()

    def expected(before: np.ndarray) -> np.ndarray:
        for _ in range(3):
            before = np.roll(2 * before + 1, -2)
        return before

    begin = values.copy()
    with tape.record(recorded):
        step()
    assert (values == expected(begin)).all()
    assert len(recorded.calls) == 9
    recorded.join()
    assert len(recorded.calls) == 1
    gc.collect()
    for _ in range(100):
        begin = values % 1000
        values[:] = begin
        recorded.replay()
        assert (values == expected(begin)).all()


def test_while_threads_wait_the_next_weights_are_prefetched(threads: int) -> None:
    """By each a limited part of its share; and a program keeps no tensor that it reads."""
    small, large, most = torch.zeros(100), torch.zeros(2**20), parallel._MOST_FETCHED
    first = small.data_ptr(), 400 // threads, 400 // threads
    values, last = np.zeros(64, np.int64), (large.data_ptr(), 2**22 // threads, most)
    works = [parallel.Work(APPEND, [values.ctypes.data, 64, 16], 16, reads=x) for x in (None, small, None, large, None)]
    program, kept = parallel.Program(works), weakref.ref(small)
    fetched = program._rows[:, parallel._FETCH : parallel._FETCH_BYTES + 1]
    assert [tuple(row) for row in fetched.tolist()] == [first, last, last, (0, 0, 0), (0, 0, 0)]
    del small
    assert kept() is None
    program()
    assert (values == 2**5 - 1).all()


def test_a_program_needs_no_more_threads_than_there_are_when_it_runs() -> None:
    values = np.zeros(64, np.int64)
    with torch_threads(5):
        program = parallel.Program([parallel.Work(APPEND, [values.ctypes.data, 64, 16], 16)] * 3)
    with torch_threads(1):
        program()
    assert (values == 7).all()


def test_what_torch_computes_in_between_keeps_its_place() -> None:
    values, x = np.arange(8), torch.zeros(1)
    recorded = tape.Tape()
    with tape.record(recorded):
        parallel.Work(APPEND, [values.ctypes.data, 8, 1], 1).run()
        recorded.calls.append(lambda: x.add_(int(values[0])))
        parallel.Work(APPEND, [values.ctypes.data, 8, 2], 2).run()
    recorded.join()
    assert len(recorded.calls) == 3
    values[:] = 0
    recorded.replay()
    assert x.item() == 1 and (values == 3).all()


def test_a_recorded_sum_keeps_what_it_adds() -> None:
    """The added tensor may have no other reference."""
    x, y, out = torch.ones(8), torch.ones(8), torch.empty(8)
    held, recorded = weakref.ref(y), tape.Tape()
    with tape.record(recorded):
        residual_add.add(x, y, out)
    del y
    gc.collect()
    assert held() is not None
    recorded.join()
    recorded.replay()
    assert (out == 2).all()
    del recorded
    gc.collect()
    assert held() is None


def test_two_programs_at_once(threads: int) -> None:
    """As of two engines in one process: neither takes the other's pieces, and both finish."""
    wrong: list[bool] = []

    def run() -> None:
        values = np.zeros(64, np.int64)
        program = parallel.Program([parallel.Work(APPEND, [values.ctypes.data, 64, 16], 16) for _ in range(20)])
        for _ in range(200):
            values[:] = 0
            program()
            wrong.append(bool((values != 2**20 - 1).any()))

    callers = [threading.Thread(target=run) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert len(wrong) == 400 and not any(wrong)


def test_a_program_goes_on_when_no_other_thread_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread processes the shares of three threads, one after another."""
    monkeypatch.setattr(parallel, "parallel_for", parallel.serial_for)
    values = np.zeros(64, np.int64)
    with torch_threads(3):
        parallel.Program([parallel.Work(APPEND, [values.ctypes.data, 64, 16], 16) for _ in range(5)])()
    assert (values == 31).all()
