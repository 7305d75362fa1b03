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

ANSWER = """
from roseplay import Engine, SamplingParams
with Engine("tiny-chat", worker="thread") as engine:
    for length in (3, 40):
        engine.submit(list(range(4, 4 + length)), SamplingParams(max_new_tokens=6)).result(timeout=120)
"""
IN_THREADS = """
import numpy as np, torch
from roseplay.kernels.cpu.attention.calls import attend_in_place
from roseplay.kernels.cpu.attention.plan import Decodes
from roseplay.model.attention.interface import AttentionParams
q, blocks, one = torch.ones(1, 8, 8), torch.ones(2, 8, 4, 8), np.ones(1, np.int64)
torch.set_num_threads(3)
attend_in_place(q, q.clone(), blocks, blocks, Decodes(one - 1, one[:, None], one, one, one - 1), AttentionParams(1.0))
assert torch.get_num_threads() == 3
torch.set_num_threads(1)
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
    """And torch keeps its number of threads when Numba's first call in a process starts others."""
    exec(IN_THREADS + ANSWER, {})
    again = log(start("-c", IN_THREADS + ANSWER))
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
