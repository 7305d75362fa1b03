"""Makes a decoder take fewer kernels on a GPU.

A decode of a small model takes hundreds of kernels, each of at least a microsecond or two, even in a graph. Written out
in torch, a norm takes seven of them and a rotary embedding ten. A layer of Llama, Qwen3, Gemma 2 or Gemma 3 takes nine
here: four matrix products, attention, and one kernel between each of these, where vLLM takes about twelve.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from roseplay.kernels.cuda.attention import backend as triton_backend
from roseplay.kernels.cuda.linears import merge_linears
from roseplay.kernels.gated_mlp import GatedMLP
from roseplay.kernels.merge import SharedInputs
from roseplay.kernels.replace_modules import agrees, parts_of_rms_norm, replace_modules, replace_rotary
from roseplay.model.layout import record_layout
from roseplay.model.stateful import stateful_modules


def fuse(model: PreTrainedModel) -> None:
    """Merge linear layers and, with Triton, fuse the operations between matrix products and attention, and those by which
    modules with a recurrent state compute prompts; without Triton, replace RMS norms by torch's kernel."""
    with SharedInputs(model) as inputs:
        shapes, _ = record_layout(model)
    merge_linears(model, inputs.groups)
    if not triton_backend.available():
        replace_modules(model, TorchRMSNorm.of)
        return
    from roseplay.kernels.cuda import activations, heads, layers, norms, rotary

    replace_modules(model, norms.FusedRMSNorm.of)
    replace_modules(model, lambda module: GatedMLP.of(module, activations.ACTIVATIONS))
    heads.fuse_heads(model, shapes)
    replace_rotary(model, rotary.rotate, rotary.fits)  # of the other attention modules
    layers.fuse_layers(model)
    fuse_states(model)


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
