"""What ``roseplay.model`` computes, computed faster: kernels for CPUs (``cpu``) and for GPUs (``cuda``).

Importing it registers them; the model takes those of its device and knows none by name.
"""

from roseplay.kernels.cpu.accelerator import CPUAccelerator
from roseplay.kernels.cuda.accelerator import CudaAccelerator

__all__ = ["CPUAccelerator", "CudaAccelerator"]
