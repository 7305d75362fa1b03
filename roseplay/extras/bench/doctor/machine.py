"""Describes and measures this machine: versions, CPU instructions, read bandwidth, matrix rate, and its GPU."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from roseplay.model.ceilings import matmul_flops, read_bandwidth
from roseplay.traffic.environment import environment, version

PACKAGES = ("torch", "transformers", "numba", "triton", "gradio")
# Instruction sets that the kernels look for, by LLVM's names.
FEATURES = ("avx2", "fma", "avx512f", "avx512bf16", "avx512vnni", "amx-tile", "amx-bf16")
_CPU_MATRIX, _GPU_MATRIX = 1024, 8192


@dataclass(frozen=True)
class Device:
    """A device that models can run on."""

    name: str
    device: str
    bandwidth: float  # bytes a second: when reading on a CPU, read and written by a copy on a GPU
    matmul_flops: dict[str, float]  # operations a second of a large matrix product, by dtype


def packages() -> dict[str, str | None]:
    """Returns the installed versions of the packages that the engine uses; None if not installed."""
    return {name: version(name) for name in PACKAGES}


def features() -> list[str]:
    """Returns which of ``FEATURES`` the kernels can use on this CPU; without Numba, torch's name for its CPU level."""
    try:
        from roseplay.kernels.cpu.features import has, has_amx
    except ImportError:  # Numba is an extra
        import torch

        return [torch.backends.cpu.get_cpu_capability()]
    names = [name for name in FEATURES if has(name)]
    return names if has_amx() else [name for name in names if not name.startswith("amx")]


def devices() -> list[Device]:
    """Measures the CPU, and the GPU if torch can use one; takes a few seconds."""
    import torch

    about = environment(threads=torch.get_num_threads(), device="cpu")
    results = [_measure(f"{about['cpu']}, {about['cores']} cores", "cpu", ("float32", "bfloat16"), _CPU_MATRIX)]
    if torch.cuda.is_available():
        results.append(_measure(torch.cuda.get_device_name(), "cuda", ("bfloat16",), _GPU_MATRIX))
    return results


def missing_gpu() -> str | None:
    """Returns advice if there is a GPU that torch cannot use; None otherwise."""
    import torch

    if torch.cuda.is_available() or shutil.which("nvidia-smi") is None:
        return None
    return f"There is an NVIDIA driver, but torch {torch.__version__} cannot use it: install a CUDA build of torch"


def _measure(name: str, device: str, dtypes: tuple[str, ...], size: int) -> Device:
    rates = {dtype: matmul_flops(device, size, dtype) for dtype in dtypes}
    return Device(name, device, read_bandwidth(device), rates)
