"""Small operations of a decoder in one kernel each, on a GPU.

A decode of a small model takes hundreds of kernels, each of at least a microsecond or two, even in a graph. A norm that
is written out takes seven of them, for which torch has one; a rotary embedding takes ten, or one in Triton.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from roseplay.kernels.cuda.attention import backend as triton_backend
from roseplay.kernels.replace_modules import agrees, parts_of_rms_norm, replace_modules, replace_rotary
from roseplay.model.stateful import stateful_modules


def fuse(model: PreTrainedModel) -> None:
    """Replace RMS norms and, with Triton, those that multiply by 1 + weight, rotary embeddings and the functions by which
    modules with a recurrent state compute prompts."""
    fuse_norms(model)
    if triton_backend.available():
        fuse_offset_norms(model)
        fuse_rotary(model)
        fuse_states(model)


def fuse_norms(model: PreTrainedModel) -> int:
    """Replace RMS norms by torch's kernel; returns their number."""
    return replace_modules(model, TorchRMSNorm.of)


def fuse_offset_norms(model: PreTrainedModel) -> int:
    """Replace Gemma's RMS norms, which multiply by 1 + weight; returns their number. Needs Triton."""
    return replace_modules(model, OffsetRMSNorm.of)


def fuse_rotary(model: PreTrainedModel) -> int:
    """Make attention modules rotate queries and keys in one launch; returns their number. Needs Triton."""
    from roseplay.kernels.cuda import rotary as rotary_triton

    return replace_rotary(model, rotary_triton.rotate, rotary_triton.fits)


def fuse_states(model: PreTrainedModel) -> None:
    """Make modules with a recurrent state compute all prompts of a step in a few launches, where Triton supports the GPU."""
    on_gpu = model.device.type == "cuda"
    if stateful_modules(model) and not (on_gpu and triton_backend.missing(model.device)):
        from roseplay.kernels.cuda.states.fuse import fuse_states

        fuse_states(model)


class TorchRMSNorm(nn.Module):
    """RMS norm by torch's own kernel, which rounds once, at the end."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    @classmethod
    def of(cls, module: nn.Module) -> TorchRMSNorm | None:
        """Returns the replacement of an RMS norm that scales by its weight; None for other modules."""
        parts = parts_of_rms_norm(module)
        if parts is None or isinstance(module, cls):
            return None
        norm = cls(*parts)
        return norm if agrees(module, norm, len(norm.weight), norm.weight) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class OffsetRMSNorm(nn.Module):
    """Replaces an RMS norm that multiplies by 1 + weight; ``plain`` still computes inputs that the kernel does not fit."""

    def __init__(self, plain: nn.Module, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps
        self._plain = [plain]  # in a list, so that it is not a submodule

    @classmethod
    def of(cls, module: nn.Module) -> OffsetRMSNorm | None:
        """Returns the replacement of such a norm; None for other modules."""
        parts = parts_of_rms_norm(module)
        if parts is None or isinstance(module, (cls, TorchRMSNorm)):
            return None
        norm = cls(module, *parts)
        return norm if agrees(module, norm, len(norm.weight), norm.weight) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from roseplay.kernels.cuda import norms

        if not norms.fits(x):
            return self._plain[0](x)  # type: ignore[no-any-return]
        return norms.rms_norm(x, self.weight, self.eps, plus_one=True)
