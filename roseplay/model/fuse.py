"""Replacing what a model spells out in many small operations by one that computes the same.

Nothing is taken on trust: a replacement is tried on random numbers beside what it replaces, and left out where it
differs by more than rounding. On a GPU, and without Numba, only activations are replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, NewGELUActivation

from roseplay.model.pack import MergedLinear, MergedPart

try:
    from roseplay.model import fused
except ImportError:  # Numba is an extra
    fused = None  # type: ignore[assignment]

_ROTARY = "apply_rotary_pos_emb"
_TOKENS = 3  # of a trial


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
    trials: dict[Any, bool] = {}

    def agree(kind: Any, trial: Callable[[], bool]) -> bool:
        if kind not in trials:
            with torch.random.fork_rng(devices=[]):
                trials[kind] = trial()
        return trials[kind]

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            norm = FusedRMSNorm.of(child)
            if norm:
                setattr(module, name, norm)
                counts["norms"] += 1
            gate = FusedGate.of(child)
            if gate and agree((type(child), gate.dim), gate.agrees):
                setattr(module, name, gate)
                counts["gates"] += 1
        counts["rotary"] += _fuse_rotary(module, model.dtype, agree)
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
        with torch.random.fork_rng(devices=[]):
            return next((norm for norm in norms if norm.agrees()), None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not fused.fits(x, self.weight):
            return self.plain(x)  # type: ignore[no-any-return]
        return fused.rms_norm(x, self.weight, self.eps, plus_one=self.plus_one)

    def agrees(self) -> bool:
        x = torch.randn(1, _TOKENS, len(self.weight), dtype=self.weight.dtype) * 3
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
        x = torch.randn(1, _TOKENS, linear.in_features, dtype=linear.weight.dtype) * 3
        return _close(self.plain, self, x)


def _fuse_rotary(module: nn.Module, dtype: torch.dtype, agree: Callable[..., bool]) -> int:
    """Let an attention module call the fused rotary embedding by the name it knows. Its forward is a function of its
    modelling file; the module gets a copy of it that finds another function under that name."""
    forward, dim = type(module).forward, getattr(module, "head_dim", None)
    if not isinstance(forward, FunctionType) or _ROTARY not in forward.__code__.co_names or not isinstance(dim, int):
        return 0
    plain = forward.__globals__.get(_ROTARY)
    if not isinstance(plain, FunctionType) or dim % 2:
        return 0

    def apply(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **more: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        alike = cos.shape == sin.shape == (1, q.shape[2], q.shape[3]) and q.shape[3] == k.shape[3] and q.shape[0] == 1
        if args or more or not alike or not fused.fits(q, k, cos, sin) or not cos.is_contiguous() & sin.is_contiguous():
            return plain(q, k, cos, sin, *args, **more)  # type: ignore[no-any-return]
        return fused.rotate(q, k, cos, sin)

    def trial() -> bool:
        q, k = (torch.randn(1, _TOKENS, heads, dim, dtype=dtype).transpose(1, 2) for heads in (4, 2))
        cos, sin = (torch.randn(1, _TOKENS, dim, dtype=dtype) for _ in range(2))
        try:
            pairs = zip(plain(q, k, cos, sin), fused.rotate(q, k, cos, sin), strict=True)
        except (RuntimeError, TypeError, ValueError):  # made for other shapes
            return False
        return fused.fits(q, k, cos, sin) and all(_same(x, y) for x, y in pairs)

    if not agree((plain, dim), trial):
        return 0
    copied = FunctionType(
        forward.__code__,
        {**forward.__globals__, _ROTARY: apply},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    copied.__kwdefaults__ = forward.__kwdefaults__
    module.forward = MethodType(copied, module)  # type: ignore[method-assign]
    return 1


def _close(plain: Callable[..., Any], new: Callable[..., Any], x: torch.Tensor) -> bool:
    try:
        return _same(plain(x), new(x))
    except (AttributeError, RuntimeError, TypeError, ValueError):  # not what its name said
        return False


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """But for rounding: a few units in the last place."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    tolerance = 4 * torch.finfo(x.dtype).eps
    return torch.allclose(x.float(), y.float(), rtol=tolerance, atol=tolerance * x.abs().max().item())
