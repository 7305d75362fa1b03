"""Programs that use the library and are interrupted, are killed, or simply end."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.hardware import needs_simulation
from tests.processes import alive
from tests.suites.lifecycle.processes import PROGRAMS, Program, needs_proc
from tests.waiting import wait_until


@needs_proc
@needs_simulation
def test_streams_outlive_ctrl_c_and_a_worker_does_not_outlive_its_killed_parent(start: Callable[..., Program]) -> None:
    program = start(PROGRAMS / "streaming.py")
    said, worker = program.line().split()
    assert said == "streams"
    program.signal_group(signal.SIGINT)
    assert program.line() == "interrupted"
    assert program.line() == "length 50 None"
    assert alive([int(worker)])  # it was not replaced
    assert program.errors == ""
    assert program.line() == "streams again"
    program.process.kill()
    wait_until(lambda: not program.processes, "the worker's end", 20)


@needs_simulation
def test_closing_an_engine_leaves_another_s_exit_hook(start: Callable[..., Program]) -> None:
    program = start(PROGRAMS / "exit_hooks.py")
    assert program.line() == "ends"
    assert program.line() == "abort"
    assert program.ended() == 0
    assert program.errors == ""


@pytest.mark.parametrize(
    ("module", "command", "code"),
    [
        pytest.param(
            "uvicorn", "serve --port 0 --worker thread --model qwen3-0.6b --run-as h100", 130, marks=needs_simulation
        ),
        pytest.param("gradio", "play --port 0 --replay assets/demo.jsonl", 0, marks=pytest.mark.slow),
        pytest.param("gradio", "play --port 0 --num-blocks 64", 130, marks=pytest.mark.slow),
    ],
)
def test_a_signal_that_python_drops_during_the_start_ends_the_server(
    start: Callable[..., Program], module: str, command: str, code: int
) -> None:
    program = start(PROGRAMS / "interrupted_start.py", module, *command.split())
    assert program.ended(120) == code
    assert "KeyboardInterrupt" in program.errors  # Python reports that it dropped the exception, and nothing else
    assert program.errors.count("Traceback") == 1
