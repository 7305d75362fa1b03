"""Modules that compute small operations of a decoder in one compiled pass each, on a CPU. Needs Numba."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import GELUTanh

from roseplay.core.progress import Reporter
from roseplay.kernels.cpu import activations, norms, rotary, rows
from roseplay.kernels.cpu.states.fuse import fuse_states
from roseplay.kernels.gated_mlp import GatedMLP
from roseplay.kernels.replace_modules import (
    agrees,
    parts_of_gated_rms_norm,
    parts_of_rms_norm,
    replace_modules,
    replace_rotary,
    same,
)


def fuse(model: PreTrainedModel, reporter: Reporter | None = None) -> None:
    """Replace norms, rotary embeddings and their angles, GELUs, updates of recurrent states and, if gate and up are one product
    (``pack_linears``), gated SiLUs.

    ``reporter`` receives the progress: each may have to be compiled first.
    """
    parts: list[Callable[[], object]] = [
        lambda: fuse_states(model),
        lambda: replace_modules(model, FusedRMSNorm.of),
        lambda: replace_modules(model, FusedGatedRMSNorm.of),
        lambda: replace_modules(model, FusedLayerNorm.of),
        lambda: replace_modules(model, lambda module: FusedGELU.of(module, model.dtype)),
        lambda: replace_modules(model, lambda module: GatedMLP.of(module, (_silu_times,))),
        lambda: replace_modules(model, lambda module: FusedAngles.of(module, model.dtype)),
        lambda: replace_rotary(model, rotary.rotate, rotary.can_rotate),
    ]
    reporter = reporter or Reporter()
    reporter.expect(len(parts))
    for part in parts:
        part()
        reporter.advance()


class FusedRMSNorm(nn.Module):
    """Replaces an RMS norm, ``plain``, which still computes inputs of another dtype."""

    def __init__(self, plain: nn.Module, weight: nn.Parameter, eps: float, plus_one: bool) -> None:
        super().__init__()
        self.plain, self.weight, self.eps, self.plus_one = plain, weight, eps, plus_one

    @classmethod
    def of(cls, module: nn.Module) -> FusedRMSNorm | None:
        """Returns the replacement of an RMS norm that scales by its weight, or one plus that; None for other modules."""
        parts = parts_of_rms_norm(module)
        if parts is None or isinstance(module, cls) or not rows.fits(parts[0]):
            return None
        weight, eps = parts
        norms = (cls(module, weight, eps, plus_one) for plus_one in (False, True))
        return next((norm for norm in norms if agrees(module, norm, len(weight), weight)), None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != self.weight.dtype or not rows.fits(x):
            return self.plain(x)  # type: ignore[no-any-return]
        return norms.rms_norm(x, self.weight, self.eps, plus_one=self.plus_one)


class FusedGatedRMSNorm(nn.Module):
    """Replaces an RMS norm with a gate, ``plain``, which still computes inputs of another dtype."""

    def __init__(self, plain: nn.Module, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.plain, self.weight, self.eps = plain, weight, eps

    @classmethod
    def of(cls, module: nn.Module) -> FusedGatedRMSNorm | None:
        """Returns the replacement of an RMS norm followed by its gate's SiLU; None for other modules."""
        parts = parts_of_gated_rms_norm(module)
        if parts is None or isinstance(module, cls) or not rows.fits(parts[0]):
            return None
        norm = cls(module, *parts)
        return norm if agrees(module, norm, len(parts[0]), parts[0], inputs=2) else None

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        alike = x.dtype == gate.dtype == self.weight.dtype and x.shape == gate.shape
        if not alike or not rows.fits(x) or not rows.fits(gate):
            return self.plain(x, gate)  # type: ignore[no-any-return]
        return norms.rms_norm(x, self.weight, self.eps, gate=gate)


class FusedLayerNorm(nn.Module):
    """Replaces a layer norm, ``plain``, which still computes inputs of another dtype."""

    def __init__(self, plain: nn.LayerNorm) -> None:
        super().__init__()
        self.plain, self.weight, self.bias, self.eps = plain, plain.weight, plain.bias, plain.eps

    @classmethod
    def of(cls, module: nn.Module) -> FusedLayerNorm | None:
        if type(module) is not nn.LayerNorm or len(module.normalized_shape) != 1 or module.bias is None:
            return None
        weight = module.weight
        norm = cls(module)
        alike = rows.fits(weight) and rows.fits(module.bias) and weight.dtype == module.bias.dtype
        return norm if alike and agrees(module, norm, len(weight), weight) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != self.weight.dtype or not rows.fits(x):
            return self.plain(x)  # type: ignore[no-any-return]
        return norms.layer_norm(x, self.weight, self.bias, self.eps)


class FusedGELU(nn.Module):
    """Replaces torch's GELU by the tanh approximation."""

    @classmethod
    def of(cls, module: nn.Module, dtype: torch.dtype) -> FusedGELU | None:
        is_tanh = type(module) is nn.GELU and module.approximate == "tanh"
        if not is_tanh and type(module) is not GELUTanh:
            return None
        gelu = cls()
        return gelu if agrees(module, gelu, 100, torch.empty(0, dtype=dtype)) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not rows.takes(x.dtype):
            return nn.functional.gelu(x, approximate="tanh")
        return activations.gelu_tanh(x)


class FusedAngles(nn.Module):
    """Replaces a module that computes the angles of rotary embeddings, ``plain``."""

    def __init__(self, plain: nn.Module, frequencies: torch.Tensor, scaling: float) -> None:
        super().__init__()
        self.plain, self.inv_freq, self.scaling = plain, frequencies, scaling

    @classmethod
    def of(cls, module: nn.Module, dtype: torch.dtype) -> FusedAngles | None:
        """Returns the replacement if it computes the same, also for the last position; None for other modules."""
        frequencies, scaling = (getattr(module, name, None) for name in ("inv_freq", "attention_scaling"))
        last = getattr(module, "max_seq_len_cached", 0) - 1
        # In bfloat16 if a model in memory was converted.
        if not isinstance(frequencies, torch.Tensor) or frequencies.dtype != torch.float32:
            return None
        if not isinstance(scaling, float | int) or last < 1:
            return None
        fused = cls(module, frequencies, scaling)
        x, positions = torch.empty(1, 4, 1, dtype=dtype), torch.tensor([[0, 1, last // 3, last]])
        try:
            alike = all(same(*pair) for pair in zip(module(x, positions), fused(x, positions), strict=True))
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):  # other inputs or another shape
            return None
        return fused if alike else None

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not rows.takes(x.dtype) or position_ids.shape[0] != 1:
            return self.plain(x, position_ids)  # type: ignore[no-any-return]
        return rotary.angles(position_ids, self.inv_freq, self.scaling, x.dtype)


def _silu_times(product: torch.Tensor) -> torch.Tensor:
    """An ``Activate`` of ``GatedMLP``."""
    out = product.new_empty((*product.shape[:-1], product.shape[-1] // 2))
    activations.silu_times(product, out)
    return out
