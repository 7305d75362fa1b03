"""Engines that were opened and closed leave no memory, thread, file handle or process behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hardware import needs_simulation
from tests.suites.lifecycle.processes import PROGRAMS, Program, needs_proc
from tests.waiting import wait_until

# A pool of 50 MB: even the smallest part that an engine could leave is noticeable, and the allocator frees it at once.
POOL = {"num_blocks": 8192, "block_size": 16}
POOL_BYTES = 8192 * 16 * 384
CHEAP = {**POOL, "pack_weights": False, "fuse_ops": False, "record_steps": False}
SETTLED = 1  # measurements until caches and thread pools have reached their final size

pytestmark = needs_proc


def check(found: dict[str, Any]) -> None:
    # The program counts the parts of an open engine, and must find none of them once all engines are closed.
    assert min(count for kind, count in found["open"].items() if kind != "Stream") > 0, found["open"]
    assert found["closed"] == dict.fromkeys(found["closed"], 0)
    measured = found["measured"]
    settled, last = measured[min(SETTLED, len(measured) - 1)], measured[-1]
    slope = (last["memory"] - settled["memory"]) / max(1, last["engines"] - settled["engines"])
    print(f"{last['engines']} engines: {slope / 1e3:+.0f} kB each, {last}")
    assert last["memory"] - settled["memory"] < 0.8 * POOL_BYTES, [m["memory"] >> 20 for m in measured]
    assert max(m["threads"] for m in measured) == 0
    assert max(m["processes"] for m in measured) == 0
    assert last["native_threads"] <= settled["native_threads"]

    for mode in ("thread", "process"):  # the first process starts the resource tracker, whose handles stay open
        counts = [m["handles"] for m in measured if m["mode"] == mode]
        assert len(set(counts)) <= 1, counts


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("in_threads", "in_processes", "settings"),
    [
        pytest.param(5, 1, CHEAP, id="six", marks=needs_simulation),
        pytest.param(49, 1, CHEAP, id="fifty", marks=pytest.mark.slow),
        pytest.param(50, 0, POOL, id="fifty in threads, as they are by default", marks=pytest.mark.slow),
        pytest.param(0, 50, CHEAP, id="fifty in processes", marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_engines_that_are_closed_leave_nothing(
    start: Callable[..., Program], model_directory: Path, in_threads: int, in_processes: int, settings: dict[str, Any]
) -> None:
    program = start(
        PROGRAMS / "cycles.py", model_directory, str(in_threads), str(in_processes), json.dumps(settings)
    )  # fmt: skip
    found = json.loads(program.line(280 if in_processes < 50 else 1100))
    check(found)
    assert program.ended() == 0
    wait_until(lambda: not program.processes, "the end of all its processes", 20)
