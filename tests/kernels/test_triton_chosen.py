"""Where Triton's attention runs, and what is said where it does not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from roseplay.config import EngineConfig
from roseplay.core.progress import Reporter
from roseplay.engine.errors import EngineStartError
from roseplay.engine.load_runner import load_model_runner
from roseplay.kernels.cuda.accelerator import CudaAccelerator
from roseplay.model.accelerator import Parts
from roseplay.model.attention.interface import default_backend, make_backend
from roseplay.model.device_errors import is_out_of_memory, judge
from tests.kernels.conftest import needs_triton
from tests.kernels.triton_jit import variants
from tests.model.attention_cases import make_problem, pairwise_cases
from tests.model.harness import accelerator_with

pytestmark = needs_triton

CUDA = torch.device("cuda")
Gpu = Callable[[tuple[int, int], str | None], None]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Sets the GPU's compute capability, and AMD's version of torch if it is one of AMD's."""

    def use(capability: tuple[int, int], hip: str | None) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.version, "hip", hip)

    return use


@pytest.mark.parametrize(
    ("capability", "hip", "expected"),
    [
        ((7, 5), None, "gather"),
        ((8, 0), None, "triton"),
        ((12, 0), None, "triton"),
        ((9, 4), "7.0", "triton"),
        ((6, 0), "7.0", "triton"),  # AMD's numbers are others
    ],
)
def test_gpus_before_ampere_gather(gpu: Gpu, capability: tuple[int, int], hip: str | None, expected: str):
    gpu(capability, hip)
    assert default_backend(CUDA) == expected


def no_step(batch: Any) -> Any:
    raise AssertionError("nothing is computed")


def test_a_gpu_that_cannot_run_triton_says_why(gpu: Gpu):
    gpu((7, 5), None)
    cache: Any = SimpleNamespace(device=CUDA)
    with pytest.raises(ValueError, match="attention='triton' needs compute capability 8.0 or higher, this GPU has 7.5"):
        make_backend("triton", cache)
    config: Any = EngineConfig(tensor_parallel_size=2)  # without graphs
    loaded, gather = SimpleNamespace(device=CUDA, model=torch.nn.Module()), make_backend("gather", cache)
    attention, *_ = CudaAccelerator(Parts(no_step, loaded, gather, config, Reporter())).choices()
    assert attention.chosen == "gather"
    assert "needs compute capability 8.0 or higher, this GPU has 7.5" in attention.slow


@pytest.mark.parametrize(("hip", "expected"), [(None, "tf32x3"), ("7.0", "ieee")])
def test_float32_is_multiplied_as_the_vendor_can(gpu: Gpu, hip: str | None, expected: str):
    """AMD's compiler knows no TF32 in three parts."""
    from roseplay.kernels.cuda.attention import append, kernels, plan

    gpu((9, 0), hip)
    case = next(case for case in pairwise_cases() if case.dtype == torch.float32)
    problem = make_problem(case, torch.device("cpu"))
    with variants(kernels, append, plan) as compiled:
        problem.attend(make_backend("triton", problem.cache))
    (attend,) = (key for name, key in compiled if name == "attend_kernel")
    assert f"('constexpr', '{expected}')" in attend


def test_a_kernel_that_does_not_fit_is_neither_short_memory_nor_a_lost_device():
    from triton.runtime.errors import OutOfResources

    error = OutOfResources(73728, 65536, "shared memory")
    expected = "a kernel needs 73728 of shared memory, this GPU has 65536: set attention to gather"
    assert not is_out_of_memory(error)
    assert str(judge(error, torch.device("cpu"))) == expected

    def prepare(*arguments: Any) -> Any:
        raise error

    with accelerator_with(prepare=prepare), pytest.raises(EngineStartError, match=expected):
        load_model_runner("tiny-chat", EngineConfig(), Reporter())
