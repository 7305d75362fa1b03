"""What an error of a step says about the device: it had no memory, it is lost, or neither."""

from __future__ import annotations

import torch

from roseplay.core.step import DeviceLostError, StepTooLargeError

# A CPU's allocators, CUDA outside of torch's allocator, cuBLAS and cuDNN say it with errors of other types than
# torch.OutOfMemoryError; these words are in them, in lower case.
_NO_MEMORY = (
    "out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "std::bad_alloc",
    "status_alloc_failed",
)  # fmt: skip
# Libraries on a GPU raise plain RuntimeErrors, both for one launch that failed and for a device that is gone.
_OF_DEVICE = ("cuda", "cublas", "cudnn", "triton error", "hip error")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was short, on a GPU or a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _NO_MEMORY)


def judge(error: Exception, device: torch.device) -> Exception:
    """``StepTooLargeError``, ``DeviceLostError`` or, where it is neither, the error itself.

    An error that may come from a broken device, but does not say so, is settled by trying the device.
    """
    if is_out_of_memory(error):
        return StepTooLargeError(_in_short(error))
    if isinstance(error, torch.AcceleratorError):
        return _lost(error)
    if isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _OF_DEVICE):
        try:
            try_device(device)
        except Exception:
            return _lost(error)
    return error


def try_device(device: torch.device) -> None:
    """Have the device compute something, and wait for it. Raises whatever it raises."""
    x = torch.ones((16, 16), device=device)
    if (x @ x).sum().item() != 16**3:
        raise RuntimeError(f"{device} computes wrong numbers")


def _lost(error: Exception) -> DeviceLostError:
    return DeviceLostError(f"the device is lost ({_first_line(error)})")


def _in_short(error: Exception) -> str:
    """Without the advice that torch adds."""
    return _first_line(error).split(". ", 1)[0] if isinstance(error, torch.OutOfMemoryError) else _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
