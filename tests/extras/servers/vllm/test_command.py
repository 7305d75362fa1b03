"""``roseplay vllm``: what it starts, and what it prints to start by hand."""

from __future__ import annotations

import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from roseplay.cli import main
from roseplay.extras.servers.vllm.command import INSIDE, SCHEDULER


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    """A command that notes how it was started, and ends with exit code 3."""
    program = tmp_path / "vllm"
    notes = shlex.quote(str(tmp_path / "notes"))
    program.write_text(f'#!/bin/sh\necho "$@" > {notes}\necho "$PYTHONPATH $ROSEPLAY_STEPS" >> {notes}\nexit 3\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_vllms_flags_reach_it_and_its_end_ends_the_page(vllm: Path) -> None:
    given = ["some/model", "--max-num-seqs", "8", "--port", "8123", "--steps", "tcp://127.0.0.1:5999"]
    command = [sys.executable, "-m", "roseplay", "vllm", "serve", *given, "--vllm", str(vllm), "--page-port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode != 0 and "vLLM has ended with exit code 3" in ended.stderr
    flags, environment = (vllm.parent / "notes").read_text().splitlines()
    assert flags == f"serve some/model --host 127.0.0.1 --port 8123 --max-num-seqs 8 --scheduler-cls {SCHEDULER}"
    assert environment.split()[-1] == "tcp://127.0.0.1:5999" and environment.startswith(str(INSIDE))


def test_a_command_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vllm", "serve", "m", "--vllm", "/no/such/vllm"]) == 2
    assert "give --vllm PATH" in capsys.readouterr().err


def test_what_to_add_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vllm", "flags", "--steps", "tcp://127.0.0.1:7000"]) == 0
    shown = capsys.readouterr().out
    assert f"PYTHONPATH={INSIDE} ROSEPLAY_STEPS=tcp://127.0.0.1:7000 vllm serve" in shown
    assert f"--scheduler-cls {SCHEDULER}" in shown
    assert shown.endswith("--steps tcp://127.0.0.1:7000\n")
