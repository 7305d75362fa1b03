"""Gated MLPs whose gate and up projections are one product, with the activation and the multiplication in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from roseplay.kernels.merge import MergedLinear, MergedPart
from roseplay.kernels.replace_modules import agrees

# Of the gate and then up, [..., 2 * dim], to act(gate) * up, [..., dim].
Activate = Callable[[torch.Tensor], torch.Tensor]


class GatedMLP(nn.Module):
    """Replaces a gated MLP, ``down(act(gate(x)) * up(x))``, whose gate and up projections are one ``MergedLinear``."""

    def __init__(self, plain: nn.Module, both: MergedLinear, activate: Activate) -> None:
        super().__init__()
        assert isinstance(plain.down_proj, nn.Module)
        self.down_proj = plain.down_proj
        self.merged, self._activate = both, activate

    @classmethod
    def of(cls, module: nn.Module, activations: Sequence[Activate]) -> GatedMLP | None:
        """Returns the replacement, with the first of some activations that computes what the module's own does; None for
        other modules."""
        gate, up = getattr(module, "gate_proj", None), getattr(module, "up_proj", None)
        if not isinstance(gate, MergedPart) or not isinstance(up, MergedPart) or not hasattr(module, "down_proj"):
            return None
        alike = gate.merged is up.merged and (gate.number, up.number) == (0, 1) and len(set(gate.merged.sizes)) == 1
        if not alike or len(gate.merged.sizes) != 2:
            return None
        if module._forward_hooks or module._forward_pre_hooks:  # a split model's, which would get lost
            return None
        packed = gate.weight.device.type == "meta"  # on a CPU
        like = torch.empty(0, dtype=gate.weight.dtype) if packed else gate.weight
        candidates = (cls(module, gate.merged, activate) for activate in activations)
        return next((mlp for mlp in candidates if agrees(module, mlp, gate.in_features, like)), None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(self._activate(self.merged.linear(x)))
        return down
