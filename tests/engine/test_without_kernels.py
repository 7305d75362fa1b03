"""Without ``roseplay.kernels``, the engine computes the same results, only more slowly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = ("test_engine.py", "test_equality.py", "test_pressure.py", "test_chat.py", "test_lifetime.py")
HERE = Path(__file__).parent

SHOW = """
import sys
import tests.engine.no_kernels
from roseplay import Engine, SamplingParams
with Engine("tiny-chat", num_blocks=100) as engine:
    stream = engine.submit(list(range(4, 44)), SamplingParams(max_new_tokens=4))
    assert len(stream.result(60).token_ids) == 4
    print(engine.info.attention, engine.info.cuda_graphs, engine.info.no_cuda_graphs)
print([name for name in sys.modules if name.startswith(("roseplay.kernels.", "numba"))])
"""


def python(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=HERE.parents[1], capture_output=True, text=True, timeout=timeout, check=False
    )


def test_the_model_knows_no_kernel():
    found = python("-c", SHOW, timeout=120)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split("\n")[:2] == ["gather 0 None", "[]"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_engines_suite_passes_without_kernels():
    files = [str(HERE / name) for name in SUITE]
    found = python("-m", "pytest", "-q", "-x", "-p", "tests.engine.no_kernels", *files, timeout=880)
    assert found.returncode == 0, found.stdout
    assert " passed" in found.stdout
