"""Replacing what a model spells out in many small operations by one that computes the same.

Nothing is taken on trust: a replacement is tried on random numbers beside what it replaces, and left out where it
differs by more than rounding. Activations are replaced everywhere, the rest here is for CPUs and needs Numba; ``fuse_gpu``
has what a GPU gets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, NewGELUActivation

from roseplay.model.pack import MergedLinear, MergedPart
from roseplay.model.swap import TOKENS, random_like, same, swap_rotary

try:
    from roseplay.model import fused
except ImportError:  # Numba is an extra
    fused = None  # type: ignore[assignment]


def fuse_activations(model: PreTrainedModel) -> int:
    """Give GELUs that are written out term by term (GPT-2's ``gelu_new``) torch's own; returns how many.

    Both are the tanh approximation; they agree to rounding. Spelled out it is seven passes over the widest
    activations of the model, a few percent of a decode step on a CPU.
    """
    replaced = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) in (NewGELUActivation, FastGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))
                replaced += 1
    return replaced


@torch.inference_mode()
def fuse_small_operations(model: PreTrainedModel) -> dict[str, int]:
    """Replace RMS norms, rotary embeddings and, where gate and up are one product (``pack_linears``), gated SiLUs;
    returns how many of each."""
    counts = {"norms": 0, "rotary": 0, "gates": 0}
    if fused is None or model.device.type != "cpu":
        return counts
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            norm = FusedRMSNorm.of(child)
            if norm:
                setattr(module, name, norm)
                counts["norms"] += 1
            gate = FusedGate.of(child)
            if gate and gate.agrees():
                setattr(module, name, gate)
                counts["gates"] += 1
    counts["rotary"] = swap_rotary(model, fused.rotate, fused.can_rotate)
    return counts


class FusedRMSNorm(nn.Module):
    """In place of ``plain``, which still computes what is too large for one thread."""

    def __init__(self, plain: nn.Module, eps: float, plus_one: bool) -> None:
        super().__init__()
        self.plain, self.eps, self.plus_one = plain, eps, plus_one
        assert isinstance(plain.weight, torch.Tensor)
        self.weight = plain.weight

    @classmethod
    def of(cls, module: nn.Module) -> FusedRMSNorm | None:
        """For a module that is an RMS norm by its name and attributes."""
        weight = getattr(module, "weight", None)
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if "RMSNorm" not in type(module).__name__ or not isinstance(eps, float):
            return None
        if not isinstance(weight, torch.Tensor) or weight.dim() != 1:
            return None
        norms = (cls(module, eps, plus_one) for plus_one in (False, True))
        return next((norm for norm in norms if norm.agrees()), None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not fused.fits(x, self.weight):
            return self.plain(x)  # type: ignore[no-any-return]
        return fused.rms_norm(x, self.weight, self.eps, plus_one=self.plus_one)

    def agrees(self) -> bool:
        x = random_like((1, TOKENS, len(self.weight)), self.weight)
        return fused.fits(x, self.weight) and _close(self.plain, self, x)


class FusedGate(nn.Module):
    """``down(silu(gate(x)) * up(x))``, with gate and up in one product."""

    def __init__(self, plain: nn.Module, both: MergedLinear) -> None:
        super().__init__()
        assert isinstance(plain.down_proj, nn.Module)
        self.plain, self.down_proj = plain, plain.down_proj
        self.dim = both.sizes[0]
        self._both = [both]  # not a child a second time

    @classmethod
    def of(cls, module: nn.Module) -> FusedGate | None:
        gate, up = getattr(module, "gate_proj", None), getattr(module, "up_proj", None)
        if not isinstance(gate, MergedPart) or not isinstance(up, MergedPart) or not hasattr(module, "down_proj"):
            return None
        alike = gate.merged is up.merged and (gate.number, up.number) == (0, 1) and len(set(gate.merged.sizes)) == 1
        return cls(module, gate.merged) if alike and len(gate.merged.sizes) == 2 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self._both[0].linear
        if x.numel() // x.shape[-1] * 2 * self.dim > fused.MOST_NUMBERS:
            return self.plain(x)  # type: ignore[no-any-return]
        product = both(x)
        out = product.new_empty((*x.shape[:-1], self.dim))
        fused.silu_times(product, out)
        down: torch.Tensor = self.down_proj(out)
        return down

    def agrees(self) -> bool:
        linear = self._both[0].linear
        x = random_like((1, TOKENS, linear.in_features), linear.packed)
        return _close(self.plain, self, x)


def _close(plain: Callable[..., Any], new: Callable[..., Any], x: torch.Tensor) -> bool:
    try:
        return same(plain(x), new(x))
    except (AttributeError, RuntimeError, TypeError, ValueError):  # not what its name said
        return False
