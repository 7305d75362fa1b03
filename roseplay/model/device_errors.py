"""Classifies the errors of a step: the device had no memory, the device is lost, or neither."""

from __future__ import annotations

import torch

from roseplay.core.step import DeviceLostError, StepTooLargeError

# CPU allocators, CUDA outside torch's allocator, cuBLAS and cuDNN do not raise torch.OutOfMemoryError, but their
# messages contain one of these phrases (compared in lower case).
_NO_MEMORY = (
    "out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "std::bad_alloc",
    "status_alloc_failed",
)  # fmt: skip
# GPU libraries raise plain RuntimeErrors, both for a single launch that failed and for a lost device.
_OF_DEVICE = ("cuda", "cublas", "cudnn", "triton error", "hip error")


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error means that a GPU or the host had no memory, so that less work may succeed."""
    if isinstance(error, DeviceLostError):  # its message quotes the cause
        return False
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _NO_MEMORY)


def judge(error: Exception, device: torch.device) -> Exception:
    """Returns a ``StepTooLargeError``, a ``DeviceLostError`` or, if it is neither, the error itself.

    For an error of a GPU library that does not say whether the device is lost, this tries the device.
    """
    if isinstance(error, DeviceLostError):
        return error
    if is_out_of_memory(error):
        return StepTooLargeError(_short(error))
    if isinstance(error, torch.AcceleratorError):
        return _lost(error)
    if isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _OF_DEVICE):
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
