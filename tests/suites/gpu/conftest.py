"""Tests of a GPU's answers: ``pytest tests/suites/gpu`` on a machine with one. Otherwise, they run on a stand-in.

The stand-in is the CPU with ``emulate_gpu`` (graphs that record calls and repeat them) and Triton's interpreter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import torch

# Triton reads this once, on import. Tests that need its interpreter may have imported it already.
if torch.cuda.is_available() and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "0"

from tests.kernels.emulation import emulate_gpu
from tests.model.conftest import one_thread, short_warm_up

__all__ = ["one_thread", "short_warm_up"]

ON_GPU = torch.cuda.is_available() and os.environ["TRITON_INTERPRET"] == "0"


@pytest.fixture(scope="module")
def device() -> Iterator[str]:
    """The GPU, or its stand-in."""
    if ON_GPU:
        yield "cuda"
        return
    with emulate_gpu():
        yield "cpu"
