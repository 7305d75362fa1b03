"""Classifies the errors of a step: the device had no memory, it is lost, it is too small for a kernel, or none of them."""

from __future__ import annotations

import sys

import torch

from roseplay.core.step import DeviceLostError, StepTooLargeError
from roseplay.model.errors import UnsupportedModelError

# torch's CPU allocator, cuBLAS, cuDNN and Triton raise plain RuntimeErrors, of which nothing but the text tells that there
# was no memory (compared in lower case).
_NO_MEMORY = (
    "out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "std::bad_alloc",
    "status_alloc_failed",
)  # fmt: skip
_MEMORY_ALLOCATION = 2  # the code of CUDA, cudaErrorMemoryAllocation, and of HIP


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error means that a GPU or the host had no memory, so that less work may succeed."""
    if isinstance(error, DeviceLostError):  # its message quotes the cause
        return False
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) == _MEMORY_ALLOCATION
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _NO_MEMORY)


def too_small_for_kernel(error: BaseException) -> UnsupportedModelError | None:
    """Returns the error to raise if a Triton kernel needs more than the device has, such as shared memory, whatever the
    size of the step; None for other errors."""
    errors = sys.modules.get("triton.runtime.errors")
    if errors is None or not isinstance(error, errors.OutOfResources):
        return None
    needs, has = error.required, error.limit
    return UnsupportedModelError(f"a kernel needs {needs} of {error.name}, this GPU has {has}: set attention to gather")


def judge(error: Exception, device: torch.device) -> Exception:
    """Returns a ``StepTooLargeError``, a ``DeviceLostError``, an ``UnsupportedModelError`` if the device is too small for
    a kernel, or if it is none of these the error itself.

    GPU libraries raise plain RuntimeErrors, both for a launch that failed and for a lost device: this tries the device.
    """
    if isinstance(error, DeviceLostError):
        return error
    too_small = too_small_for_kernel(error)
    if too_small is not None:
        return too_small
    if is_out_of_memory(error):
        return StepTooLargeError(_short(error))
    if isinstance(error, torch.AcceleratorError):
        return _lost(error)
    if isinstance(error, RuntimeError):
        try:
            try_device(device)
        except Exception:
            return _lost(error)
    return error


def try_device(device: torch.device) -> None:
    """Compute something on the device and wait for it. Raises what torch raises, and ``RuntimeError`` for a wrong result."""
    x = torch.ones((16, 16), device=device)
    if (x @ x).sum().item() != 16**3:
        raise RuntimeError(f"{device} computes wrong numbers")


def _lost(error: Exception) -> DeviceLostError:
    return DeviceLostError(f"the device is lost ({_first_line(error)})")


def _short(error: Exception) -> str:
    """Returns the error's first line, without the advice that torch adds."""
    return _first_line(error).split(". ", 1)[0] if isinstance(error, torch.OutOfMemoryError) else _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
