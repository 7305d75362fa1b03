"""Tests of a GPU's answers: ``pytest tests/suites/gpu`` where there is one. Elsewhere, and among all tests, on a stand-in.

The stand-in is the CPU with ``emulate_gpu`` (graphs that record and call again) and Triton's interpreter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import torch

# Triton looks at this once, when it is imported: tests that need its interpreter may have done so before.
if torch.cuda.is_available() and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "0"

from roseplay.kernels.cuda.emulation import emulate_gpu
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
