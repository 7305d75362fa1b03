"""The page's server as a user runs it: started, stopped in every possible way, and started again at the same port."""

from __future__ import annotations

import os
import pty
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.suites.lifecycle.processes import REPOSITORY, Program, needs_proc
from tests.waiting import wait_until

pytestmark = [needs_proc, pytest.mark.slow, pytest.mark.timeout(400)]

PLAY = ("-m", "roseplay", "play")
APP = (str(REPOSITORY / "app.py"),)
ENDS_WITHIN_S = 30.0  # allows for a busy machine; an idle one needs less than two


def flags(port: int) -> list[str]:
    cheap = ["--num-blocks", "64", "--no-record-steps", "--no-fuse-ops", "--no-pack-weights"]
    return ["--model", "tiny-chat", "--port", str(port), *cheap]


@pytest.fixture
def port() -> int:
    """A port that was just free."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def serve(start: Callable[..., Program], port: int) -> Iterator[Callable[..., Program]]:
    """Starts the server at the test's port and waits until it is live."""

    def serve(command: tuple[str, ...] = PLAY) -> Program:
        program = start(*command, *flags(port))
        assert program.line().startswith(f"roseplay is live at http://127.0.0.1:{port} ")
        assert len(program.processes) >= 2  # including the worker's
        return program

    yield serve


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ui/delta", timeout=10) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def test_a_killed_server_leaves_nothing_and_the_next_has_its_port_and_ends_at_ctrl_c(
    serve: Callable[..., Program], port: int
) -> None:
    killed = serve(PLAY)
    killed.process.kill()
    killed.ended()
    second = serve(APP)  # immediately, while the first server's worker may still be ending
    assert answers(port)
    wait_until(lambda: not killed.processes, "the killed server's end", 20)
    second.signal_group(signal.SIGINT)
    assert second.ended(ENDS_WITHIN_S) == 0
    assert second.errors == ""
    wait_until(lambda: not second.processes, "the interrupted server's end", 20)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("group", [True, False], ids=["to its group", "to itself"])
def test_a_server_ends_in_order_at_a_signal(
    serve: Callable[..., Program], port: int, number: signal.Signals, group: bool
) -> None:
    program = serve()
    assert answers(port)
    if group:
        program.signal_group(number)
    else:
        program.process.send_signal(number)
    assert program.ended(ENDS_WITHIN_S) == 0
    assert program.errors == ""
    wait_until(lambda: not program.processes, "the end of all its processes", 20)
    assert not answers(port)


def test_ctrl_c_while_the_model_is_being_loaded_ends_it_without_a_traceback(
    start: Callable[..., Program], port: int
) -> None:
    program = start(*PLAY, *flags(port))
    wait_until(lambda: len(program.processes) > 1, "the start of the worker", 120)
    program.signal_group(signal.SIGINT)
    assert program.ended(ENDS_WITHIN_S) == 130
    assert program.errors == ""
    wait_until(lambda: not program.processes, "the end of all its processes", 20)


def test_a_server_ends_with_its_terminal(start: Callable[..., Program], port: int) -> None:
    ours, theirs = pty.openpty()
    program = start(*PLAY, *flags(port), terminal=theirs)
    os.close(theirs)
    wait_until(lambda: answers(port), "the server's start", 120)
    os.close(ours)
    program.ended(ENDS_WITHIN_S)
    wait_until(lambda: not program.processes, "the end of all its processes", 20)


def test_a_recording_of_a_server_whose_terminal_was_closed_is_whole(
    start: Callable[..., Program], port: int, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    program = start(*PLAY, *flags(port), "--record", str(file))
    program.line()
    program.signal_group(signal.SIGHUP)
    assert program.ended(ENDS_WITHIN_S) == 0
    assert program.errors == ""
    assert file.read_text().endswith("}\n")
