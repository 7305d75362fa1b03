"""Small operations of a decoder as one kernel each, for a GPU.

A decode of a small model is hundreds of kernels that each take a microsecond or two whatever they do, also in a graph. A
norm that is spelled out is seven of them, and torch has one that does the same; a rotary embedding is ten, and Triton makes
them one. Nothing is taken on trust: each is tried on random numbers beside what it replaces.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

_TOKENS = 3  # of a trial
_ROTARY = "apply_rotary_pos_emb"


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
    x = _random((1, _TOKENS, len(weight)), weight)
    try:
        return norm if _same(module(x), norm(x)) else None
    except (RuntimeError, TypeError, ValueError):  # not what its name said
        return None


@torch.inference_mode()
def fuse_rotary(model: PreTrainedModel) -> int:
    """Let attention modules rotate queries and keys in one launch; returns how many. Needs Triton.

    A module's forward is a function of its modelling file; the module gets a copy of it that finds another function under
    the name of the old one.
    """
    from roseplay.model.rotary_triton import fits, rotate

    trials: dict[tuple[Any, int], bool] = {}
    replaced = 0
    for module in model.modules():
        forward, dim = type(module).forward, getattr(module, "head_dim", None)
        if (
            not isinstance(forward, FunctionType)
            or _ROTARY not in forward.__code__.co_names
            or "forward" in vars(module)
        ):
            continue
        plain = forward.__globals__.get(_ROTARY)
        if not isinstance(plain, FunctionType) or not isinstance(dim, int) or dim % 2:
            continue
        if (plain, dim) not in trials:
            trials[plain, dim] = _rotates_alike(plain, rotate, dim, next(model.parameters()))
        if not trials[plain, dim]:
            continue
        names = {**forward.__globals__, _ROTARY: _choose(plain, rotate, fits)}
        copied = FunctionType(
            forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__
        )  # fmt: skip
        copied.__kwdefaults__ = forward.__kwdefaults__
        module.forward = MethodType(copied, module)  # type: ignore[method-assign]
        replaced += 1
    return replaced


def _choose(plain: Callable[..., Any], rotate: Callable[..., Any], fits: Callable[..., bool]) -> Callable[..., Any]:
    """The new one where it takes what it is given, else the old one."""

    def apply(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **more: Any) -> Any:
        if args or more or not fits(q, k, cos, sin):
            return plain(q, k, cos, sin, *args, **more)
        return rotate(q, k, cos, sin)

    return apply


def _rotates_alike(plain: Callable[..., Any], rotate: Callable[..., Any], dim: int, like: torch.Tensor) -> bool:
    q, k = (_random((1, _TOKENS, heads, dim), like).transpose(1, 2) for heads in (4, 2))
    cos, sin = (_random((1, _TOKENS, dim), like) for _ in range(2))
    try:
        return all(_same(x, y) for x, y in zip(plain(q, k, cos, sin), rotate(q, k, cos, sin), strict=True))
    except (RuntimeError, TypeError, ValueError):  # made for other shapes
        return False


def _random(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(like.device).manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device=like.device).to(like.dtype) * 3


def _same(right: torch.Tensor, found: torch.Tensor) -> bool:
    """But for rounding: a few units in the last place."""
    if right.shape != found.shape or right.dtype != found.dtype:
        return False
    tolerance = 4 * torch.finfo(right.dtype).eps
    return torch.allclose(right.float(), found.float(), rtol=tolerance, atol=tolerance * float(right.abs().max()))
