"""Work in a process of its own: what it sends arrives, and how it ended is said."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from roseplay.extras.bench.process import Apart
from roseplay.extras.bench.runs import BenchmarkError


def work(orders: Connection) -> Iterator[int]:
    """Answers each order with its double, fails at 0, and crashes below."""
    while (order := orders.recv()) is not None:
        if order < 0:
            os._exit(3)
        if order == 0:
            raise RuntimeError("out of luck\nand more")
        yield 2 * order


@pytest.mark.parametrize(
    ("last", "said"), [(0, "doubling failed: RuntimeError: out of luck$"), (-1, "doubling ended with code 3$")]
)
def test_a_process_answers_until_it_fails(last: int, said: str) -> None:
    process = Apart("doubling", 60, work)
    for order in (1, 21):
        process.connection.send(order)
        assert process.receive() == 2 * order
    process.connection.send(last)
    with pytest.raises(BenchmarkError, match=said):
        process.receive()
