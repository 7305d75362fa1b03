"""Programs that use the library: interrupted, killed, or simply ending."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.lifecycle.processes import PROGRAMS, Program, needs_proc, wait_until


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@needs_proc
def test_streams_outlive_ctrl_c_and_a_worker_does_not_outlive_its_killed_parent(
    start: Callable[..., Program], model_directory: Path
) -> None:
    program = start(PROGRAMS / "streaming.py", model_directory)
    said, worker = program.line().split()
    assert said == "streams"
    program.signal_group(signal.SIGINT)
    assert program.line() == "interrupted"
    assert program.line() == "length 50 None"
    assert lives(int(worker))  # it was not replaced by another
    assert program.errors == ""
    assert program.line() == "streams again"
    program.process.kill()
    wait_until(lambda: not program.processes, 20, "the worker's end")


def test_closing_an_engine_leaves_another_s_exit_hook(start: Callable[..., Program], model_directory: Path) -> None:
    program = start(PROGRAMS / "exit_hooks.py", model_directory)
    assert program.line() == "ends"
    assert program.line() == "abort"
    assert program.ended() == 0
    assert program.errors == ""
