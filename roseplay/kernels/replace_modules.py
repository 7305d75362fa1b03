"""Replaces a model's modules by faster ones, after comparing both on random inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, NewGELUActivation

_TOKENS = 3  # of the random inputs
ROTARY = "apply_rotary_pos_emb"


@torch.inference_mode()
def replace_modules(model: PreTrainedModel, make: Callable[[nn.Module], nn.Module | None]) -> int:
    """Replace each module for which ``make`` returns another; returns the number of replacements."""
    replaced = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            new = make(child)
            if new is not None:
                setattr(module, name, new)
                replaced += 1
    return replaced


def replace_gelus(model: PreTrainedModel) -> int:
    """Replace GELUs that are written out term by term (GPT-2's ``gelu_new``) by torch's; returns their number.

    Both are the tanh approximation and agree up to rounding. Written out, it takes seven passes over the widest
    activations of the model, a few percent of a decode step on a CPU.
    """

    def own(module: nn.Module) -> nn.Module | None:
        return nn.GELU(approximate="tanh") if type(module) in (NewGELUActivation, FastGELUActivation) else None

    return replace_modules(model, own)


def parts_of_rms_norm(module: nn.Module) -> tuple[nn.Parameter, float] | None:
    """Returns the weight ``[dim]`` and the epsilon of a module whose name and attributes are those of an RMS norm,
    else None.

    Norms with further inputs, such as a gate, do not count.
    """
    return _parts_of_norm(module, inputs=1)


def parts_of_gated_rms_norm(module: nn.Module) -> tuple[nn.Parameter, float] | None:
    """Returns the same for an RMS norm that takes a gate besides its input."""
    return _parts_of_norm(module, inputs=2)


def _parts_of_norm(module: nn.Module, inputs: int) -> tuple[nn.Parameter, float] | None:
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if "RMSNorm" not in type(module).__name__ or not isinstance(eps, float):
        return None
    if len(inspect.signature(type(module).forward).parameters) != 1 + inputs:  # and self
        return None
    return (weight, eps) if isinstance(weight, nn.Parameter) and weight.dim() == 1 else None


@torch.inference_mode()
def agrees(
    plain: Callable[..., Any], new: Callable[..., Any], dim: int, like: torch.Tensor, *, inputs: int = 1
) -> bool:
    """Returns whether both compute the same for ``inputs`` random ``[1, tokens, dim]``; False if either raises."""
    arguments = [random_like((1, _TOKENS + number, dim), like)[:, :_TOKENS] for number in range(inputs)]
    try:
        return same(plain(*arguments), new(*arguments))
    except (AttributeError, RuntimeError, TypeError, ValueError):  # not what its name suggests
        return False


@torch.inference_mode()
def replace_rotary(model: PreTrainedModel, rotate: Callable[..., Any], fits: Callable[..., bool]) -> int:
    """Make attention modules apply rotary embeddings by ``rotate(q, k, cos, sin)``, for inputs that it ``fits``, if it
    agrees with their own function; returns the number of modules.

    A module's forward looks up the rotary function in the globals of its modelling file, so the module gets a copy of its
    forward with other globals.
    """
    trials: dict[tuple[Any, int], bool] = {}
    replaced = 0
    for module in model.modules():
        forward, dim = type(module).forward, getattr(module, "head_dim", None)
        if (
            not isinstance(forward, FunctionType)
            or ROTARY not in forward.__code__.co_names
            or "forward" in vars(module)
        ):
            continue
        plain = forward.__globals__.get(ROTARY)
        if not isinstance(plain, FunctionType) or not isinstance(dim, int) or dim % 2:
            continue
        if (plain, dim) not in trials:
            trials[plain, dim] = _rotations_agree(plain, rotate, fits, dim, next(model.parameters()))
        if not trials[plain, dim]:
            continue
        function = with_globals(forward, {ROTARY: _choose(plain, rotate, fits)})
        module.forward = MethodType(function, module)  # type: ignore[method-assign]
        replaced += 1
    return replaced


def with_globals(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """Returns a copy of a function whose globals include these names."""
    scope = {**function.__globals__, **names}
    copied = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _choose(plain: Callable[..., Any], rotate: Callable[..., Any], fits: Callable[..., bool]) -> Callable[..., Any]:
    """Returns a function that calls ``rotate`` for inputs that it supports (``fits``), else ``plain``."""

    def apply(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **more: Any) -> Any:
        if args or more or not fits(q, k, cos, sin):
            return plain(q, k, cos, sin, *args, **more)
        return rotate(q, k, cos, sin)

    return apply


def _rotations_agree(
    plain: Callable[..., Any], rotate: Callable[..., Any], fits: Callable[..., bool], dim: int, like: torch.Tensor
) -> bool:
    q, k = (random_like((1, _TOKENS, heads, dim), like).transpose(1, 2) for heads in (4, 2))
    cos, sin = (random_like((1, _TOKENS, dim), like) for _ in range(2))
    if not fits(q, k, cos, sin):
        return False
    try:
        return all(same(x, y) for x, y in zip(plain(q, k, cos, sin), rotate(q, k, cos, sin), strict=True))
    except (RuntimeError, TypeError, ValueError):  # does not support these shapes
        return False


def random_like(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Returns random numbers of ``like``'s dtype and device, equal in every call, without torch's global generator."""
    generator = torch.Generator(like.device).manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device=like.device).to(like.dtype) * 3


def same(expected: torch.Tensor, found: torch.Tensor, *, units: int = 4) -> bool:
    """Returns whether two tensors are equal up to rounding, a few ``units`` in the last place."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    tolerance = units * torch.finfo(expected.dtype).eps
    return torch.allclose(expected.float(), found.float(), rtol=tolerance, atol=tolerance * float(expected.abs().max()))
