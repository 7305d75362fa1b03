"""What Numba has compiled is reused by the next process, whose first answers would otherwise wait for a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="Numba is not installed")

from roseplay.kernels.cpu import simd

# Numba's first call in a process starts its threads; torch keeps the number that it was given.
ANSWER = """
from roseplay import Engine, SamplingParams
with Engine("tiny-chat", worker="thread", threads=3) as engine:
    assert engine.info.threads == 3
    for length in (3, 40):
        engine.submit(list(range(4, 4 + length)), SamplingParams(max_new_tokens=6)).result(timeout=120)
"""
KERNEL = """
from numba import types
from parts.constants import FACTOR
from simd import kernel, pointer

def multiply(args, piece):
    pointer(args[1], types.int64)[piece] *= FACTOR

kernel(multiply)
"""


def start(*arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start a process that prints the log of Numba's cache."""
    environment = {**os.environ, "NUMBA_DEBUG_CACHE": "1"}
    return subprocess.Popen([sys.executable, *arguments], env=environment, cwd=cwd, stdout=subprocess.PIPE, text=True)


def log(process: subprocess.Popen[str]) -> str:
    told, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    return told


def test_nothing_is_compiled_twice():
    exec(ANSWER, {})
    again = log(start("-c", ANSWER))
    assert "data loaded" in again and "data saved" not in again


def test_a_kernel_is_compiled_by_one_process_and_again_when_a_file_that_helps_to_make_it_changes(tmp_path: Path):
    shutil.copy(simd.__file__, tmp_path)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "constants.py").write_text("FACTOR = 2\n")
    (tmp_path / "example.py").write_text(KERNEL)
    both = [log(process) for process in [start("example.py", cwd=tmp_path) for _ in range(2)]]
    assert (
        sorted("data saved" in told for told in both) == sorted("data loaded" in told for told in both) == [False, True]
    )
    (tmp_path / "parts" / "constants.py").write_text("FACTOR = 3\n")
    again = log(start("example.py", cwd=tmp_path))
    assert "data saved" in again and "data loaded" not in again
