"""The next process reuses what Numba has compiled; otherwise its first answers would wait for a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="Numba is not installed")

import roseplay

ANSWER = """
from roseplay import Engine, SamplingParams
with Engine("tiny-chat", worker="thread") as engine:
    for length in (3, 40):
        engine.submit(list(range(4, 4 + length)), SamplingParams(max_new_tokens=6)).result(timeout=120)
"""


KERNEL = "from roseplay.kernels.cpu.attention import decode_loops; decode_loops.append(False)"


def run(program: str, package: Path | None = None) -> str:
    """Numba's cache log; ``package`` is the folder from which roseplay is imported, which also has the cache."""
    environment = {**os.environ, "NUMBA_DEBUG_CACHE": "1"}
    if package is not None:
        environment["PYTHONPATH"] = str(package)
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=environment, cwd=package, capture_output=True, text=True, timeout=240, check=True
    ).stdout


def test_nothing_is_compiled_twice():
    """The cache is that of all tests, so that usually nothing is compiled here; others may be writing to it."""
    runs = [run(ANSWER)]
    while "data saved" in runs[-1] and len(runs) < 4:
        runs.append(run(ANSWER))
    assert "data loaded" in runs[-1]
    assert "data saved" not in runs[-1]


@pytest.mark.parametrize("changed", [pytest.param("rows.py", marks=pytest.mark.slow), "attention/decode_vectors.py"])
def test_a_kernel_is_compiled_again_when_a_file_that_helps_to_make_it_changes(tmp_path: Path, changed: str):
    package = tmp_path / "package"
    shutil.copytree(
        Path(roseplay.__file__).parent, package / "roseplay", ignore=shutil.ignore_patterns("play", "__pycache__")
    )
    assert "data saved" in run(KERNEL, package)
    with (package / "roseplay" / "kernels" / "cpu" / changed).open("a") as file:
        file.write("# changed")
    again = run(KERNEL, package)
    assert "data saved" in again and "data loaded" not in again
