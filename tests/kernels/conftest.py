"""As for tests of the model: one thread and short warm-ups."""

import pytest
import torch

from roseplay.kernels.cpu.pack import can_pack
from tests.model.conftest import one_thread, short_warm_up

needs_packed_bfloat16 = pytest.mark.skipif(
    not can_pack(torch.device("cpu"), torch.bfloat16), reason="this CPU has no packed products in bfloat16"
)

__all__ = ["needs_packed_bfloat16", "one_thread", "short_warm_up"]
