"""Waits for a state, with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str = "it did not come true", timeout: float = 60.0) -> T:
    """Wait until a condition is true and return its value; fail with ``what`` if that takes too long."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} within {timeout:g} s"
        time.sleep(0.005)
    return value
