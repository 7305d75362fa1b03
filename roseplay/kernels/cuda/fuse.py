"""Small operations of a decoder in one kernel each, for a GPU.

A decode of a small model is hundreds of kernels that each take a microsecond or two whatever they do, also in a graph. A
norm that is spelled out is seven of them, and torch has one that does the same; a rotary embedding is ten, and Triton makes
them one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from roseplay.kernels.cuda.attention import backend as triton_backend
from roseplay.kernels.replace_modules import agrees, parts_of_rms_norm, replace_modules, replace_rotary


def fuse(model: PreTrainedModel) -> None:
    """Replace RMS norms and, with Triton, rotary embeddings."""
    fuse_norms(model)
    if triton_backend.available():
        fuse_rotary(model)


def fuse_norms(model: PreTrainedModel) -> int:
    """Returns how many."""
    return replace_modules(model, TorchRMSNorm.of)


def fuse_rotary(model: PreTrainedModel) -> int:
    """Let attention modules rotate queries and keys in one launch; returns how many. Needs Triton."""
    from roseplay.kernels.cuda import rotary as rotary_triton

    return replace_rotary(model, rotary_triton.rotate, rotary_triton.fits)


class TorchRMSNorm(nn.Module):
    """``x`` over its root mean square, times ``weight``, by torch's own kernel; it rounds once, at the end."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    @classmethod
    def of(cls, module: nn.Module) -> TorchRMSNorm | None:
        """For an RMS norm that multiplies by its weight."""
        parts = parts_of_rms_norm(module)
        if parts is None or isinstance(module, cls):
            return None
        norm = cls(*parts)
        return norm if agrees(module, norm, len(norm.weight), norm.weight) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
