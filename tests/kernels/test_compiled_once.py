"""What Numba compiles is found again by the next process: else its first answers wait for a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="Numba is not installed")

ANSWER = """
from roseplay import Engine, SamplingParams
with Engine("tiny-chat", worker="thread") as engine:
    for length in (3, 40):
        engine.submit(list(range(4, 4 + length)), SamplingParams(max_new_tokens=6)).result(timeout=120)
"""


def test_nothing_is_compiled_twice(tmp_path: Path):
    environment = {**os.environ, "NUMBA_DEBUG_CACHE": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    runs = [
        subprocess.run(
            [sys.executable, "-c", ANSWER], env=environment, capture_output=True, text=True, timeout=240, check=True
        ).stdout
        for _ in range(2)
    ]
    assert "data saved" in runs[0]
    assert "data loaded" in runs[1]
    assert "data saved" not in runs[1]
