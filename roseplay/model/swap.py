"""Giving a model's modules something that computes the same, and proving on random numbers that it does."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from transformers import PreTrainedModel

TOKENS = 3  # of a trial
_ROTARY = "apply_rotary_pos_emb"


@torch.inference_mode()
def swap_rotary(model: PreTrainedModel, rotate: Callable[..., Any], fits: Callable[..., bool]) -> int:
    """Let attention modules rotate queries and keys by ``rotate(q, k, cos, sin)`` where that ``fits`` and agrees with what
    they have; returns how many.

    A module's forward is a function of its modelling file; the module gets a copy of it that finds another function under
    the name of the old one.
    """
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
            trials[plain, dim] = _rotates_alike(plain, rotate, fits, dim, next(model.parameters()))
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


def _rotates_alike(
    plain: Callable[..., Any], rotate: Callable[..., Any], fits: Callable[..., bool], dim: int, like: torch.Tensor
) -> bool:
    q, k = (random_like((1, TOKENS, heads, dim), like).transpose(1, 2) for heads in (4, 2))
    cos, sin = (random_like((1, TOKENS, dim), like) for _ in range(2))
    if not fits(q, k, cos, sin):
        return False
    try:
        return all(same(x, y) for x, y in zip(plain(q, k, cos, sin), rotate(q, k, cos, sin), strict=True))
    except (RuntimeError, TypeError, ValueError):  # made for other shapes
        return False


def random_like(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Of ``like``'s dtype and device; always the same numbers, and torch's generator stays as it is."""
    generator = torch.Generator(like.device).manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device=like.device).to(like.dtype) * 3


def same(right: torch.Tensor, found: torch.Tensor) -> bool:
    """But for rounding: a few units in the last place."""
    if right.shape != found.shape or right.dtype != found.dtype:
        return False
    tolerance = 4 * torch.finfo(right.dtype).eps
    return torch.allclose(right.float(), found.float(), rtol=tolerance, atol=tolerance * float(right.abs().max()))
