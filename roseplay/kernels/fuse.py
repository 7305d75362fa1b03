"""Replacing what a model spells out in many small operations by one that computes the same.

Nothing is taken on trust: a replacement is tried on random numbers beside what it replaces (``replace_modules``), and left out where
it differs by more than rounding.
"""

from __future__ import annotations

import importlib.util

from torch import nn
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, NewGELUActivation

from roseplay.kernels.replace_modules import replace_modules


def fuse_activations(model: PreTrainedModel) -> int:
    """Give GELUs that are written out term by term (GPT-2's ``gelu_new``) torch's own; returns how many.

    Both are the tanh approximation; they agree to rounding. Spelled out it is seven passes over the widest
    activations of the model, a few percent of a decode step on a CPU.
    """

    def own(module: nn.Module) -> nn.Module | None:
        return nn.GELU(approximate="tanh") if type(module) in (NewGELUActivation, FastGELUActivation) else None

    return replace_modules(model, own)


def fuse_small_operations(model: PreTrainedModel) -> None:
    """Replace norms, rotary embeddings and gates by what the model's device has for them; a CPU needs Numba for it."""
    if model.device.type == "cuda":
        from roseplay.kernels.cuda import fuse as fuse_cuda

        fuse_cuda.fuse(model)
    elif model.device.type == "cpu" and importlib.util.find_spec("numba") is not None:
        from roseplay.kernels.cpu import fuse as fuse_cpu

        fuse_cpu.fuse(model)
