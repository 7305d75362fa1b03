"""As for tests of the model: one thread and short warm-ups. And marks for what a machine may lack."""

import importlib.util
import os

import pytest
import torch

from roseplay.kernels.cpu.attention import calls
from roseplay.kernels.cpu.pack import can_pack
from tests.model.conftest import one_thread, short_warm_up

CPU = torch.device("cpu")
HAS_TRITON, HAS_NUMBA = importlib.util.find_spec("triton") is not None, calls.available(torch.float32, CPU)
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
interpreted = pytest.mark.skipif(
    not HAS_TRITON or os.environ.get("TRITON_INTERPRET") != "1", reason="there is no Triton to interpret"
)
needs_numba = pytest.mark.skipif(not HAS_NUMBA, reason="Numba is not installed")
needs_packing = pytest.mark.skipif(not can_pack(CPU, torch.float32), reason="this torch has no packed products")
needs_packed_bfloat16 = pytest.mark.skipif(
    not can_pack(CPU, torch.bfloat16), reason="this CPU has no packed products in bfloat16"
)

__all__ = ["one_thread", "short_warm_up"]
