"""Where Triton's attention runs, and what is said where it does not."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from roseplay.config import EngineConfig
from roseplay.core.progress import Reporter
from roseplay.engine import load_runner
from roseplay.engine.errors import EngineStartError
from roseplay.kernels.cuda.accelerator import CudaAccelerator
from roseplay.model.attention import default_backend, make_backend
from roseplay.model.device_errors import is_out_of_memory, judge
from tests.kernels.triton_jit import variants
from tests.model.attention_cases import make_problem, pairwise_cases

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("capability", "hip", "expected"),
    [
        ((7, 0), None, "gather"),
        ((7, 5), None, "gather"),
        ((8, 0), None, "triton"),
        ((12, 0), None, "triton"),
        ((9, 4), "7.0", "triton"),
        ((6, 0), "7.0", "triton"),  # AMD's numbers are others
    ],
)
def test_gpus_before_ampere_gather(
    capability: tuple[int, int], hip: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert default_backend(CUDA) == expected


def no_step(batch: Any) -> Any:
    raise AssertionError("nothing is computed")


def test_a_gpu_that_cannot_run_triton_says_why(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    cache: Any = SimpleNamespace(device=CUDA)
    with pytest.raises(ValueError, match="attention='triton' needs compute capability 8.0 or higher, this GPU has 7.5"):
        make_backend("triton", cache)
    config: Any = EngineConfig(tensor_parallel_size=2)  # without graphs
    loaded, gather = SimpleNamespace(device=CUDA, model=torch.nn.Module()), make_backend("gather", cache)
    attention, *_ = CudaAccelerator(no_step, loaded, gather, config, Reporter()).choices()
    assert attention.chosen == "gather"
    assert "needs compute capability 8.0 or higher, this GPU has 7.5" in attention.slow


@pytest.mark.parametrize(("hip", "expected"), [(None, "tf32x3"), ("7.0", "ieee")])
def test_float32_is_multiplied_as_the_vendor_can(hip: str | None, expected: str, monkeypatch: pytest.MonkeyPatch):
    """AMD's compiler knows no TF32 in three parts."""
    from roseplay.kernels.cuda.attention import append, kernels, plan

    monkeypatch.setattr(torch.version, "hip", hip)
    case = next(case for case in pairwise_cases() if case.dtype == torch.float32)
    problem = make_problem(case, torch.device("cpu"))
    with variants(monkeypatch, kernels, append, plan) as compiled:
        problem.attend(make_backend("triton", problem.cache))
    (attend,) = (key for name, key in compiled if name == "attend_kernel")
    assert f"('constexpr', '{expected}')" in attend


def test_a_kernel_that_does_not_fit_is_neither_short_memory_nor_a_lost_device(monkeypatch: pytest.MonkeyPatch):
    from triton.runtime.errors import OutOfResources

    error = OutOfResources(73728, 65536, "shared memory")
    expected = "a kernel needs 73728 of shared memory, this GPU has 65536: set attention to gather"
    assert not is_out_of_memory(error)
    assert str(judge(error, torch.device("cpu"))) == expected

    def load(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(load_runner, "_load_whole", load)
    with pytest.raises(EngineStartError, match=expected):
        load_runner.load_model_runner("tiny-chat", EngineConfig(), Reporter())
