"""Tests of a GPU's answers: ``pytest tests/gpu`` where there is one. Elsewhere they run on a stand-in, which is slower.

The stand-in is the CPU with ``emulate_gpu`` (graphs that record and call again) and Triton's interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from roseplay.kernels.cuda.emulation import emulate_gpu
from tests.model.conftest import one_thread, short_warm_up

__all__ = ["one_thread", "short_warm_up"]

_HERE = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    """Compile Triton's kernels for the GPU, unless tests run beside these that need its interpreter."""
    alone = all(Path(arg.partition("::")[0]).resolve().is_relative_to(_HERE) for arg in config.args)
    if torch.cuda.is_available() and alone:
        os.environ["TRITON_INTERPRET"] = "0"


@pytest.fixture(scope="module")
def device() -> Iterator[str]:
    """The GPU, or its stand-in."""
    if torch.cuda.is_available():
        yield "cuda"
        return
    with emulate_gpu():
        yield "cpu"
