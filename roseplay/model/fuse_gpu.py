"""Small operations of a decoder as one kernel each, for a GPU.

A decode of a small model is hundreds of kernels that each take a microsecond or two whatever they do, also in a graph. A
norm that is spelled out is seven of them, and torch has one that does the same; a rotary embedding is ten, and Triton makes
them one. Nothing is taken on trust: each is tried on random numbers beside what it replaces.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from roseplay.model.swap import TOKENS, random_like, same, swap_rotary


class TorchRMSNorm(nn.Module):
    """``x`` over its root mean square, times ``weight``, by torch's own kernel; it rounds once, at the end."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@torch.inference_mode()
def fuse_norms(model: PreTrainedModel) -> int:
    """Replace RMS norms, each where it gives what the old one gives but for rounding; returns how many."""
    replaced = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            norm = _fused_norm(child)
            if norm is not None:
                setattr(module, name, norm)
                replaced += 1
    return replaced


def _fused_norm(module: nn.Module) -> TorchRMSNorm | None:
    """For a module that is an RMS norm by its name, its attributes, and what it does with random numbers."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if "RMSNorm" not in type(module).__name__ or isinstance(module, TorchRMSNorm) or not isinstance(eps, float):
        return None
    if not isinstance(weight, nn.Parameter) or weight.dim() != 1:
        return None
    norm = TorchRMSNorm(weight, eps)
    x = random_like((1, TOKENS, len(weight)), weight)
    try:
        return norm if same(module(x), norm(x)) else None
    except (RuntimeError, TypeError, ValueError):  # not what its name said
        return None


def fuse_rotary(model: PreTrainedModel) -> int:
    """Let attention modules rotate queries and keys in one launch; returns how many. Needs Triton."""
    from roseplay.model import rotary_triton

    return swap_rotary(model, rotary_triton.rotate, rotary_triton.fits)
