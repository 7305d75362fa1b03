"""Kernels that compute the steps of ``roseplay.model`` faster, on CPUs (``cpu``) and on GPUs (``cuda``).

Importing this package registers them; the model uses those registered for its device and does not import any.
"""

from roseplay.kernels.cpu.accelerator import CPUAccelerator
from roseplay.kernels.cuda.accelerator import CudaAccelerator

__all__ = ["CPUAccelerator", "CudaAccelerator"]
